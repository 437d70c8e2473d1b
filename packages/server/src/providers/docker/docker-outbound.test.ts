import { existsSync } from "node:fs";
import { readFile, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { setTimeout as delay } from "node:timers/promises";
import { fileURLToPath } from "node:url";
import { afterAll, afterEach, beforeAll, expect, it, vi } from "vitest";
import {
  type EngineKind,
  sharedEngine,
  startEngine,
  type TestEngine,
} from "../../../test/support/docker-engine.ts";
import { type DockerUnderTest, openDocker } from "../../../test/support/docker-provider.ts";
import {
  addresses6,
  allowed,
  closedAddresses,
  FarNetwork,
  farAddress,
  gotThrough,
  ownAddress,
  type Reached,
  resolver,
  specialAddresses,
} from "../../../test/support/far-network.ts";
import { lives, type NetworkProcess, networkProcesses } from "../../../test/support/outbound-sandboxes.ts";
import { mustRun } from "../../../test/support/programs.ts";
import { describeWith, type RequirementName } from "../../../test/support/requirements.ts";
import { busyboxImage } from "../../../test/support/tiny-images.ts";
import { randomIds } from "../../platform/random-ids.ts";
import { run, soon } from "../../ports/contract/provider/harness.ts";
import { BadRequest, type NetworkChange, type RuntimeId, type RuntimeSpec } from "../../ports/index.ts";
import { Containers } from "./containers.ts";
import type { DockerProvider } from "./index.ts";

const reach = fileURLToPath(new URL("../../../test/support/programs/reach.py", import.meta.url));
/** What listens there says which address was reached. */
const ask = (address: string) => `nc -w 5 ${address} 80 </dev/null`;

const engines = [
  ["docker", []],
  ["remapped", []],
  ["podman", ["podman"]],
] as const satisfies [EngineKind, RequirementName[]][];

for (const [kind, needs] of engines)
  await describeWith(
    ["docker", "agent", "launcher", "busybox", "slirp4netns", ...needs],
    `network outbound on an engine: ${kind}`,
    () => {
      let own: (TestEngine & AsyncDisposable) | undefined;
      let engine: TestEngine;
      let network: FarNetwork;
      let docker: DockerUnderTest;
      let provider: DockerProvider;
      let changes: { runtimeId: RuntimeId; change: NetworkChange }[] = [];
      const listen = (to: DockerProvider) => {
        to.onNetwork((runtimeId, change) => changes.push({ runtimeId, change }));
        return to;
      };

      beforeAll(async () => {
        own = kind === "docker" ? undefined : await startEngine({ kind });
        engine = own ?? (await sharedEngine());
        network = await FarNetwork.open();
        docker = await openDocker(engine, {
          config: { networkMode: "outbound", networkAllow: [allowed] },
          launcher: network.launcher,
        });
        provider = listen(docker.provider);
      }, 60_000);

      afterEach(async () => {
        for (const { runtimeId } of await provider.inventory(soon()))
          await provider.destroy(runtimeId, soon(30_000));
        changes = [];
      });

      afterAll(async () => {
        await docker.close();
        await network[Symbol.asyncDispose]();
        await own?.[Symbol.asyncDispose]();
      });

      async function spawn(change: Partial<RuntimeSpec> = {}) {
        const ids = { runtimeId: randomIds.runtimeId(), sandboxId: randomIds.sandboxId() };
        const size = { image: busyboxImage, memoryMb: 128, vcpus: 1 };
        const spec: RuntimeSpec = { ...ids, ...size, env: {}, expiresInMs: 600_000, metadata: {}, ...change };
        await provider.spawn(spec, soon(30_000));
        return spec.runtimeId;
      }
      const inside = async (runtimeId: RuntimeId, script: string) =>
        (await run(provider.sandbox(runtimeId), script)).stdout;
      const processesOf = (runtimeId: RuntimeId) => networkProcesses(docker.dataDir, runtimeId, "docker");
      const containerOf = (runtimeId: RuntimeId) => `alcove-${docker.instanceId.slice(0, 12)}-${runtimeId}`;
      const engineSays = async (...words: string[]) =>
        (await mustRun("docker", ["-H", engine.socket, ...words])).stdout.trim();
      const firstProcess = async (runtimeId: RuntimeId) =>
        Number(await engineSays("inspect", "--format", "{{.State.Pid}}", containerOf(runtimeId)));
      const told = (runtimeId: RuntimeId) =>
        changes.filter((one) => one.runtimeId === runtimeId).map(({ change }) => change);
      const restored = (runtimeId: RuntimeId) =>
        vi.waitFor(
          () => expect(told(runtimeId)).toContainEqual({ state: "restored", afterMs: expect.any(Number) }),
          { timeout: 20_000, interval: 20 },
        );
      const gone = (processes: NetworkProcess[]) =>
        vi.waitFor(
          async () =>
            expect(await Promise.all(processes.map(({ pid }) => lives(pid)))).toEqual(
              processes.map(() => false),
            ),
          { timeout: 5_000, interval: 10 },
        );

      /** By a program of this machine in the container's network, which may do more than the sandbox's own. */
      async function tryAll(runtimeId: RuntimeId, options: { addresses: string[]; addresses6?: string[] }) {
        const resolvers = join(docker.dataDir, "resolv.conf");
        await writeFile(resolvers, await inside(runtimeId, "cat /etc/resolv.conf"));
        const { stdout } = await mustRun("nsenter", [
          `--net=/proc/${await firstProcess(runtimeId)}/ns/net`,
          ...["unshare", "--mount", "--propagation", "private", "sh", "-c"],
          `mount --bind ${resolvers} "$(readlink -f /etc/resolv.conf)" && exec "$@"`,
          ...["sh", "python3", reach, JSON.stringify(options)],
        ]);
        return JSON.parse(stdout) as Reached;
      }

      it("what is open is reached, by name too, and nothing else is in the container's network", async () => {
        const runtimeId = await spawn();
        expect(await inside(runtimeId, "cat /etc/resolv.conf")).toBe("nameserver 198.18.255.3\n");
        expect(await inside(runtimeId, ask(farAddress))).toBe(`reached ${farAddress}\n`);
        const name = `${farAddress.replaceAll(".", "-")}.test`;
        expect(await inside(runtimeId, `nslookup ${name}`)).toContain(`Address: ${farAddress}`);
        expect(await inside(runtimeId, "ls /sys/class/net")).toBe("lo\ntap0\n");
        expect(provider.settings()).toMatchObject({ network_mode: "outbound", network_allow: [allowed] });
      });

      it("every address that is closed is refused, in every spelling and by every way around the routes", async () => {
        const runtimeId = await spawn();
        const before = await network.far();
        const addresses = [...closedAddresses, ownAddress, ...specialAddresses];
        const reached = await tryAll(runtimeId, { addresses, addresses6 });
        expect(gotThrough(reached)).toEqual([]);
        expect(reached["10.1.2.3"]?.tcp).toBe("EHOSTUNREACH");
        expect(reached["169.254.169.254"]?.["tcp, mapped"]).toBe("EHOSTUNREACH");
        const after = await network.far();
        const arrived = (kind: "tcp" | "udp") =>
          Object.keys(after[kind]).filter((address) => after[kind][address] !== before[kind][address]);
        expect([arrived("tcp"), arrived("udp")]).toEqual([[], [resolver]]);
        expect(await network.near()).toMatchObject({ tcp: {}, udp: {} });
        // The same program reaches what is open.
        const open = await tryAll(runtimeId, { addresses: [farAddress] });
        expect(open[farAddress]).toMatchObject({
          tcp: `reached ${farAddress}`,
          "by name": `reached ${farAddress}`,
        });
      }, 120_000);

      it("a sandbox may do without, and never has the host's", async () => {
        const without = await spawn({ network: "none" });
        expect(await inside(without, "ls /sys/class/net")).toBe("lo\n");
        expect(await processesOf(without)).toEqual([]);
        await expect(spawn({ network: "host" })).rejects.toThrow(BadRequest);
      });

      it("relay and helper are nobody, and pay in a group of their own", async () => {
        const runtimeId = await spawn();
        const processes = await processesOf(runtimeId);
        expect(processes.map(({ name }) => name)).toEqual(["alcove-launch", "slirp4netns"]);
        const users = new Set<string | undefined>();
        for (const { pid, status } of processes) {
          users.add(status.Uid);
          expect(status.Groups?.trim()).toBe("");
          const groups = await readFile(`/proc/${pid}/cgroup`, "utf8");
          const memory = groups.split("\n").find((line) => /^\d+:memory:|^0::/.test(line));
          expect(memory?.endsWith(`/${runtimeId}`)).toBe(true);
        }
        expect(users.size).toBe(1);
        expect(Number([...users][0]?.split("\t")[0])).toBeGreaterThan(1_879_000_001);
      });

      it("a network that is lost is given again, and it is told", async () => {
        const runtimeId = await spawn();
        const before = await processesOf(runtimeId);
        process.kill(before[1]?.pid ?? 0, "SIGKILL");
        await restored(runtimeId);
        expect(told(runtimeId)[0]).toEqual({ state: "lost", reason: "slirp4netns ended" });
        await gone(before);
        expect(await inside(runtimeId, ask(farAddress))).toBe(`reached ${farAddress}\n`);
      }, 30_000);

      it("the network outlives its service, and the next one mends it", async () => {
        const [kept, broken] = [await spawn(), await spawn()];
        const [keptBefore, brokenBefore] = [await processesOf(kept), await processesOf(broken)];
        await provider[Symbol.asyncDispose]();
        process.kill(brokenBefore[0]?.pid ?? 0, "SIGKILL");
        await gone(brokenBefore);
        provider = listen(await docker.restart());
        for (const runtimeId of [kept, broken]) await provider.adopt(runtimeId, soon());
        await restored(broken);
        for (const runtimeId of [kept, broken])
          expect(await inside(runtimeId, ask(farAddress))).toBe(`reached ${farAddress}\n`);
        expect(told(kept)).toEqual([]);
        expect((await processesOf(kept)).map(({ pid }) => pid)).toEqual(keptBefore.map(({ pid }) => pid));
      }, 60_000);

      it("the end of a container that its engine does not tell of is no loss of its network", async () => {
        const [dies, adopted] = [await spawn(), await spawn()];
        await provider[Symbol.asyncDispose]();
        provider = listen(await docker.restart());
        await provider.adopt(adopted, soon());
        await provider.adopt(dies, soon());
        // The adopted ones are looked up behind that.
        const found = vi.spyOn(Containers.prototype, "firstProcess");
        const next = await spawn();
        await vi.waitFor(() => expect(found).toHaveResolved(), { timeout: 5_000 });
        const silent = vi
          .spyOn(Containers.prototype, "endReason")
          .mockReturnValue(new Promise(() => undefined));
        try {
          const ends = [dies, adopted, next];
          const processes = (await Promise.all(ends.map(processesOf))).flat();
          for (const runtimeId of ends) process.kill(await firstProcess(runtimeId), "SIGKILL");
          await gone(processes);
          await delay(1_000);
          expect(ends.flatMap(told)).toEqual([]);
        } finally {
          silent.mockRestore();
          found.mockRestore();
        }
      }, 60_000);

      it("a container takes its network along: destroyed, and when it dies with nobody there", async () => {
        const [destroyed, dies, hung] = [await spawn(), await spawn(), await spawn()];
        const ends = [await processesOf(destroyed), await processesOf(dies), await processesOf(hung)];
        const groups = await readFile(`/proc/${ends[0]?.[0]?.pid}/cgroup`, "utf8");
        const group = groups.split("\n").find((line) => /^\d+:memory:|^0::/.test(line)) ?? "";
        const tree = group.startsWith("0::") ? "/sys/fs/cgroup" : "/sys/fs/cgroup/memory";
        const path = `${tree}${group.slice(group.lastIndexOf(":") + 1)}`;
        expect(existsSync(path)).toBe(true);
        for (const { pid } of ends[2] ?? []) process.kill(pid, "SIGSTOP");
        for (const runtimeId of [destroyed, hung]) await provider.destroy(runtimeId, soon(30_000));
        process.kill(await firstProcess(dies), "SIGKILL");
        await gone(ends.flat());
        expect(existsSync(path)).toBe(false);
        expect(existsSync(join(docker.dataDir, "runtimes", "docker", destroyed))).toBe(false);
        expect(told(destroyed)).toEqual([]);
      }, 60_000);
    },
  );
