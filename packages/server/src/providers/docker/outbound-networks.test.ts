import { mkdir, mkdtemp, rm, statfs } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, beforeAll, expect, it, vi } from "vitest";
import { agentBinary } from "../../../test/support/agent-binary.ts";
import { dockerConfig } from "../../../test/support/docker-provider.ts";
import { describeWith } from "../../../test/support/requirements.ts";
import type { DockerConfig } from "../../config/config.ts";
import { silentLogger } from "../../platform/logger.ts";
import { BadRequest, type RuntimeId } from "../../ports/index.ts";
import { type AttachSpec, Launcher } from "../launcher/index.ts";
import type { Containers } from "./containers.ts";
import { parseEngineAddress } from "./engine-address.ts";
import type { EngineInfo } from "./engine-shapes.ts";
import { OutboundNetworks } from "./outbound-networks.ts";
import { RuntimeRecords } from "./runtime-records.ts";

vi.mock("node:fs/promises", async (original) => {
  const real = await original<typeof import("node:fs/promises")>();
  return { ...real, statfs: vi.fn(real.statfs) };
});

const here: EngineInfo = { ServerVersion: "25.0.0", DefaultRuntime: "runc" };
const runtimeId = "rt-1" as RuntimeId;
const call = { signal: new AbortController().signal };

await describeWith(["linux", "root", "launcher", "slirp4netns"], "what a network of docker needs", () => {
  let dataDir: string;
  const launcher = new Launcher({ binary: agentBinary("alcove-launch"), logger: silentLogger });
  const networksOf = (
    socket: string,
    change: Partial<DockerConfig> = {},
    info: () => Promise<EngineInfo> = async () => here,
    by = launcher,
  ) =>
    new OutboundNetworks({
      config: dockerConfig({ socket }, { networkMode: "outbound", ...change }),
      address: parseEngineAddress(socket),
      info,
      containerOf: () => "a-container",
      // An engine of another machine: there the number is a process of the container.
      containers: {
        firstProcess: async () => ({ id: "ab".repeat(32), pid: process.pid }),
      } as unknown as Containers,
      records: new RuntimeRecords({ dataDir }),
      instanceId: "elsewhere",
      launcher: by,
      logger: silentLogger,
    });

  beforeAll(async () => {
    dataDir = await mkdtemp(join(tmpdir(), "alcove-networks-"));
    await mkdir(join(dataDir, "runtimes", "docker", runtimeId), { recursive: true });
  });
  afterAll(async () => {
    await launcher[Symbol.asyncDispose]();
    await rm(dataDir, { recursive: true, force: true });
  });

  it.each<[string, string, Partial<DockerConfig>, Partial<EngineInfo>]>([
    ["an engine on this machine", "tcp://engine:2375", {}, {}],
    ["containers that share this machine's kernel", "unix:///run/docker.sock", { runtime: "runsc" }, {}],
    [
      "containers that share this machine's kernel",
      "unix:///run/docker.sock",
      {},
      { OperatingSystem: "Docker Desktop" },
    ],
    [
      "an engine that runs as root",
      "unix:///run/docker.sock",
      {},
      { SecurityOptions: ["name=seccomp", "name=rootless"] },
    ],
  ])("%s: not at %s with %o", async (needed, socket, config, info) => {
    await using networks = networksOf(socket, config);
    expect(await networks.missing({ ...here, ...info })).toContain(needed);
  });

  it("is all here", async () => {
    await using networks = networksOf("unix:///run/docker.sock");
    expect(await networks.missing(here)).toBeUndefined();
  });

  it("the engine is asked about itself until nothing is missing, and not for every sandbox", async () => {
    const answers: EngineInfo[] = [{ ...here, DefaultRuntime: "runsc" }, here];
    await using networks = networksOf("unix:///run/docker.sock", {}, async () => answers.shift() ?? here);
    await expect(networks.refuseWhenMissing(call)).rejects.toThrow(
      'network "outbound" on docker needs containers that share',
    );
    for (let spawn = 0; spawn < 3; spawn += 1) await networks.refuseWhenMissing(call);
    answers.push(here);
    await networks.refuseWhenMissing(call);
    expect(answers).toHaveLength(1);
  });

  it("an engine that turns out to be elsewhere, behind a socket that was forwarded, is refused", async () => {
    await using networks = networksOf("unix:///run/docker.sock");
    const refused = await networks.attach(runtimeId, call).catch((error: unknown) => error);
    expect(refused).toBeInstanceOf(BadRequest);
    expect(String(refused)).toContain(
      "is not one of container abababababab here: the engine has to run on this machine",
    );
    expect(await networks.has(runtimeId)).toBe(false);
  });

  it("groups that could not be looked at for want of a descriptor are looked at again", async () => {
    const attached: AttachSpec[] = [];
    const recording = { attach: async (spec: AttachSpec) => void attached.push(spec) } as unknown as Launcher;
    await using networks = networksOf("unix:///run/docker.sock", {}, undefined, recording);
    vi.mocked(statfs).mockRejectedValueOnce(
      Object.assign(new Error("too many open files"), { code: "EMFILE" }),
    );
    await expect(networks.attach(runtimeId, call)).rejects.toThrow(
      "control groups cannot be made now: too many open files",
    );
    await networks.attach(runtimeId, call);
    expect(attached.map(({ cgroup }) => cgroup?.dirs[0]?.path)).toEqual([expect.stringContaining(runtimeId)]);
  });
});
