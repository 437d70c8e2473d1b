import { mkdir, mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import { silentLogger } from "../../platform/logger.ts";
import type { RuntimeId } from "../../ports/index.ts";
import { parseEngineAddress } from "./engine-address.ts";
import { EngineDisk } from "./engine-disk.ts";
import { EngineRefusal } from "./engine-errors.ts";
import type { ContainerInspection, EngineInfo } from "./engine-shapes.ts";

const mb = 1 << 20;
const [one, two] = ["rt-1", "rt-2"] as [RuntimeId, RuntimeId];
const call = { signal: new AbortController().signal };
const look = { inodes: false, short: false, ...call };

let root: string;
let inspections: Record<string, unknown>;
let asked: string[];
beforeEach(async () => {
  root = await mkdtemp(join(tmpdir(), "alcove-disk-"));
  inspections = {};
  asked = [];
});
afterEach(() => rm(root, { recursive: true }));

const infoOf = (change: Partial<EngineInfo> = {}): EngineInfo => ({
  ServerVersion: "27.1.0",
  Driver: "overlay2",
  DriverStatus: [["Backing Filesystem", "extfs"]],
  DockerRootDir: root,
  ...change,
});

async function open(
  info: EngineInfo,
  { socket = "unix:///run/docker.sock", diskMb = 25, agentTransport = "auto" as const } = {},
) {
  const disk = new EngineDisk({
    config: { diskMb, minFreeMb: 100, agentTransport },
    instanceId: "i",
    address: parseEngineAddress(socket),
    containers: {
      inspect: async (container) => {
        asked.push(container);
        return inspections[container] as ContainerInspection | undefined;
      },
      sizes: async () => {
        asked.push("sizes");
        return [one, two].map((runtime) => ({
          Id: runtime,
          State: "running",
          Labels: { "alcove.runtime": runtime },
          SizeRw: 7 * mb,
        }));
      },
    },
    containerOf: (runtimeId) => runtimeId,
    logger: silentLogger,
  });
  await disk.learn(info);
  return disk;
}

describe("EngineDisk", () => {
  it("asks for a quota where the storage driver may have one, and no more once it was refused", async () => {
    expect((await open(infoOf())).storageOptions()).toBeUndefined();
    for (const info of [{ Driver: "btrfs" }, { DriverStatus: [["Backing Filesystem", "xfs"]] }]) {
      const disk = await open(infoOf(info));
      expect(disk.storageOptions()).toEqual({ size: "25M" });
      expect(disk.notes()[0]).toContain("bounds each sandbox's disk to 25 MB");
      const create = { method: "POST", path: "/containers/create" };
      expect(disk.refused(new EngineRefusal(create, 404, "no such image"))).toBe(false);
      const said = "--storage-opt is supported only for overlay over xfs with 'pquota' mount option";
      expect(disk.refused(new EngineRefusal(create, 500, said))).toBe(true);
      expect(disk.storageOptions()).toBeUndefined();
      expect(disk.notes()[0]).toContain("more than 25 MB is stopped");
      await disk.learn(infoOf(info));
      expect(disk.storageOptions()).toBeUndefined();
    }
    expect((await open(infoOf({ Driver: "btrfs" }), { diskMb: 0 })).storageOptions()).toBeUndefined();
  });

  it("sees what is free only on an engine whose files are here", async () => {
    expect((await (await open(infoOf())).space())?.freeMb).toBeGreaterThan(0);
    const elsewhere = [
      await open(infoOf(), { socket: "tcp://10.0.0.1:2375" }),
      await open(infoOf({ OperatingSystem: "Docker Desktop" })),
      await open(infoOf({ DockerRootDir: "/nowhere/docker" })),
    ];
    for (const disk of elsewhere) {
      expect(await disk.space()).toBeUndefined();
      expect(disk.notes().join()).toContain("min_free_mb has no effect");
    }
  });

  it.runIf(process.geteuid?.() === 0)(
    "adds up the layer, the image's volumes and the engine's files in /etc as the disk has them, without what is the service's",
    async () => {
      for (const [folder, size] of [
        ["layer", 3],
        ["volume", 4],
        ["agent", 5],
        ["container", 6],
      ] as const) {
        await mkdir(join(root, folder));
        await writeFile(join(root, folder, "file"), Buffer.alloc(size * mb, 1));
      }
      inspections[one] = {
        Id: "0123456789abcdef",
        State: { Pid: process.pid },
        GraphDriver: { Data: { UpperDir: join(root, "layer") } },
        Mounts: [
          { Type: "volume", Source: join(root, "volume"), RW: true },
          { Type: "volume", Source: join(root, "agent"), RW: false },
          { Type: "bind", Source: root, RW: true },
        ],
        HostsPath: join(root, "container", "hosts"),
      };
      const disk = await open(infoOf());
      expect((await disk.measure([one], look)).get(one)).toBeCloseTo(13, 0);
      expect((await disk.measure([one], { ...look, inodes: true })).get(one)).toBe(6);
      expect(asked).toEqual([one]);
    },
  );

  it("takes the engine's count where layers cannot be read, but where a quota bounds them only when somebody has to be found", async () => {
    inspections[one] = {};
    const disk = await open(infoOf());
    expect([...(await disk.measure([one], look))]).toEqual([[one, 7]]);
    expect((await disk.measure([one], { ...look, inodes: true })).size).toBe(0);
    const bounded = await open(infoOf({ Driver: "btrfs" }));
    asked = [];
    expect((await bounded.measure([one], look)).size).toBe(0);
    expect(asked).not.toContain("sizes");
    expect([...(await bounded.measure([one], { ...look, short: true }))]).toEqual([[one, 7]]);
  });
});
