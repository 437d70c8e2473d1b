import { existsSync } from "node:fs";
import { cp, mkdtemp, readdir, readFile, rename, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { afterEach, beforeAll, beforeEach, expect, it, onTestFinished, vi } from "vitest";
import { runScript } from "../../../test/support/attack-probe.ts";
import { containerRights } from "../../../test/support/container-rights.ts";
import { sharedEngine, type TestEngine } from "../../../test/support/docker-engine.ts";
import { containerOf, type DockerUnderTest, openDocker } from "../../../test/support/docker-provider.ts";
import {
  containersOf,
  preparedFolders,
  preparedNames,
  watchPrepared,
} from "../../../test/support/prepared-containers.ts";
import { mustRun } from "../../../test/support/programs.ts";
import { describeWith, requirement, skipWithout } from "../../../test/support/requirements.ts";
import { busyboxRootfs, importBusybox, importImage } from "../../../test/support/tiny-images.ts";
import type { DockerConfig } from "../../config/config.ts";
import { BadRequest, type RuntimeId, type RuntimeSpec } from "../../ports/index.ts";
import { Launcher, LauncherFailure } from "../launcher/index.ts";
import { isPrepared } from "../prepared/index.ts";
import { ContainerMaker } from "./container-maker.ts";
import { Containers } from "./containers.ts";
import { EngineRefusal } from "./engine-errors.ts";
import { containerName } from "./labels.ts";
import { orphanedContainers } from "./orphaned-containers.ts";
import { RuntimeRecords } from "./runtime-records.ts";

vi.setConfig({ testTimeout: 120_000, hookTimeout: 60_000 });

const soon = (ms = 60_000) => ({ signal: AbortSignal.timeout(ms) });

await describeWith(["docker", "root", "agent", "launcher", "busybox"], "prepared containers", () => {
  let engine: TestEngine;
  let image: string;
  let docker: DockerUnderTest;
  let watch: ReturnType<typeof watchPrepared>;
  const open = async (config: Partial<DockerConfig> = {}) => {
    watch = watchPrepared();
    docker = await openDocker(engine, { image, config: { prepared: 2, ...config }, logger: watch.logger });
    return docker;
  };
  beforeAll(async () => {
    engine = await sharedEngine();
    image = await importBusybox(engine, "alcove-test/prepared-busybox:latest");
  });
  beforeEach(async () => {
    await open();
  });
  afterEach(async () => {
    vi.restoreAllMocks();
    await docker.close();
    // Stopped, the service has left nothing but what is somebody's.
    expect(await preparedNames(engine, docker.instanceId)).toEqual([]);
    await (await orphanedContainers(docker.instanceId, { socket: engine.socket, ...soon() })).end();
    expect(await containersOf(engine, docker.instanceId)).toEqual(new Map());
  });

  const specOf = (change: Partial<RuntimeSpec> = {}) =>
    containerOf({ image: docker.image, memoryMb: 96, vcpus: 0.5, env: { COLOUR: "red" }, ...change });
  const spawn = async (change: Partial<RuntimeSpec> = {}, { provider } = docker) => {
    const spec = specOf(change);
    const stages: string[] = [];
    await provider.spawn(spec, { ...soon(), onStage: (stage) => stages.push(stage) });
    return {
      ...spec,
      operations: provider.sandbox(spec.runtimeId),
      isClaimed: stages.includes("claim"),
    };
  };
  const stocked = (count = 2) => watch.until(engine, docker.instanceId, count);
  const inDocker = (...args: string[]) => mustRun("docker", ["-H", engine.socket, ...args]);
  const nameOf = (runtimeId: string) => containerName(docker.instanceId, runtimeId as RuntimeId);
  const works = async ({ operations, sandboxId }: Awaited<ReturnType<typeof spawn>>) => {
    const { output } = await runScript(operations, 'hostname; cat /etc/hostname; echo "$COLOUR"');
    expect(output).toBe(`${sandboxId}\n${sandboxId}\nred\n`);
  };

  it.each<[string, Partial<DockerConfig>, Partial<RuntimeSpec>]>([
    ["plainly", {}, {}],
    ["of a user, in a folder", {}, { user: "app", workdir: "/home/app/work" }],
    [
      "with a read-only image and rights",
      { readOnlyRootfs: true, addedCaps: ["NET_RAW"], tmpfs: ["/cache:size=1m"] },
      {},
    ],
  ])("%s made have everything that a cold one has", async (_, config, change) => {
    await docker.close();
    await open(config);
    const cold = await spawn(change);
    await stocked();
    const claimed = await spawn(change);
    expect([cold.isClaimed, claimed.isClaimed]).toEqual([false, true]);
    const rights = (one: typeof cold) =>
      containerRights(engine, { dataDir: docker.dataDir, container: nameOf(one.runtimeId) }, one);
    const [of, than] = [await rights(claimed), await rights(cold)];
    const differing = of.description as { Config: Record<string, unknown> };
    // What an engine changes of no container that runs: the record says whose it is, and the machine's own name inside is set.
    expect(differing.Config).toMatchObject({
      Hostname: "NAME",
      Labels: { "alcove.runtime": "NAME", "alcove.sandbox": "NAME" },
    });
    Object.assign(differing.Config, {
      Hostname: "SANDBOX",
      Labels: { ...(differing.Config.Labels as object), "alcove.sandbox": "SANDBOX" },
    });
    expect(of).toEqual(than);
    await works(claimed);
  });

  it("with a network have the same of it, and it is theirs", async (context) => {
    const { ok } = await requirement("slirp4netns");
    if (!ok) return skipWithout(context, "slirp4netns is not installed");
    await docker.close();
    await open({ networkMode: "outbound" });
    await spawn();
    await stocked();
    const one = await spawn();
    expect(one.isClaimed).toBe(true);
    const { output } = await runScript(one.operations, "cat /etc/resolv.conf; ls /sys/class/net");
    expect(output).toContain("nameserver");
    expect(output.split("\n").length).toBeGreaterThan(2);
    const folder = join(docker.dataDir, "runtimes/docker", one.runtimeId);
    expect(existsSync(join(folder, "network.json"))).toBe(true);
    // Fewer rights than are configured are another kind.
    expect((await spawn({ network: "none" })).isClaimed).toBe(false);
  });

  it("are nobody's: in no inventory, counted by nobody, and gone when the service stops", async () => {
    const { runtimeId } = await spawn();
    const waiting = await stocked();
    const ids = (await docker.provider.inventory(soon())).map((entry) => entry.runtimeId);
    expect(ids).toEqual([runtimeId]);
    expect((await preparedFolders(docker.dataDir)).sort()).toEqual(waiting.sort());
    // An inventory leaves alone what this service keeps.
    expect((await stocked()).sort()).toEqual(waiting.sort());
    await docker.provider[Symbol.asyncDispose]();
    expect(await preparedNames(engine, docker.instanceId)).toEqual([]);
    expect(await preparedFolders(docker.dataDir)).toEqual([]);
  });

  it("0 prepares nothing", async () => {
    await docker.close();
    await open({ prepared: 0 });
    await spawn();
    await new Promise((resolve) => setTimeout(resolve, 500));
    expect(await preparedNames(engine, docker.instanceId)).toEqual([]);
  });

  it("one of another size, or of a VM, is not claimed", async () => {
    await spawn();
    await stocked();
    expect((await spawn({ memoryMb: 128 })).isClaimed).toBe(false);
    expect((await spawn({ vcpus: 1 })).isClaimed).toBe(false);
    expect((await spawn({ slot: { vmId: "vm-1", uid: 20_000 } as never })).isClaimed).toBe(false);
    expect((await spawn()).isClaimed).toBe(true);
  });

  it("one is not claimed for a spawn of which the engine would be told more", async () => {
    const order = ContainerMaker.prototype.order;
    vi.spyOn(ContainerMaker.prototype, "order").mockImplementation(function (this: ContainerMaker, ...told) {
      return { ...order.apply(this, told), StopTimeout: Number(told[0].metadata.patience ?? 10) };
    });
    await spawn();
    const waiting = await stocked();
    expect((await spawn({ metadata: { patience: "20" } })).isClaimed).toBe(false);
    expect((await stocked()).sort()).toEqual(waiting.sort());
    expect((await spawn()).isClaimed).toBe(true);
  });

  it("one whose image got another name's content is not claimed", async () => {
    const image = "alcove-test/prepared:1";
    const { tar } = await busyboxRootfs();
    await importImage(engine, tar, image, ["ENV SIZE=small"]);
    await spawn({ image });
    const waiting = await stocked();
    await importImage(engine, tar, image, ["ENV SIZE=big"]);
    const one = await spawn({ image });
    expect(one.isClaimed).toBe(false);
    expect((await runScript(one.operations, 'echo "$SIZE"')).output).toBe("big\n");
    const again = await stocked();
    expect(again.some((name) => waiting.includes(name))).toBe(false);
    expect((await spawn({ image })).isClaimed).toBe(true);
  });

  it("one whose agent, seccomp profile or image was replaced or removed is not claimed", async () => {
    const folder = await mkdtemp(join(tmpdir(), "alcove-profile-"));
    onTestFinished(() => rm(folder, { recursive: true }));
    const profile = join(folder, "profile.json");
    await writeFile(profile, JSON.stringify({ defaultAction: "SCMP_ACT_ALLOW" }));
    await docker.close();
    await open({ seccompProfile: profile });
    await spawn();
    await stocked();
    await writeFile(profile, JSON.stringify({ defaultAction: "SCMP_ACT_ALLOW", syscalls: [] }));
    expect((await spawn()).isClaimed).toBe(false);
    await stocked();
    const agents = join(docker.dataDir, "agents");
    const [digest = ""] = await readdir(agents);
    const agent = join(agents, digest, "alcove-agent");
    await cp(agent, `${agent}.new`);
    await rename(`${agent}.new`, agent);
    expect((await spawn()).isClaimed).toBe(false);
    await stocked();
    expect((await spawn()).isClaimed).toBe(true);

    const image = "alcove-test/going:1";
    await importImage(engine, (await busyboxRootfs()).tar, image);
    await spawn({ image });
    await stocked(4);
    await inDocker("rmi", "-f", image);
    await expect(spawn({ image })).rejects.toThrow("is not on the Docker Engine");
    await stocked(2);
  });

  it("one that ends while it waits is no failed spawn, and another one is made", async () => {
    await spawn();
    const waiting = await stocked();
    await Promise.all(waiting.map((name) => inDocker("kill", nameOf(name))));
    const one = await spawn();
    await works(one);
    const again = await stocked();
    expect(again.some((name) => waiting.includes(name))).toBe(false);
    await expect.poll(() => preparedFolders(docker.dataDir), { timeout: 15_000 }).toHaveLength(2);
  });

  it.each<[string, () => void]>([
    [
      "its name",
      () => void vi.spyOn(Containers.prototype, "rename").mockRejectedValueOnce(new Error("no name today")),
    ],
    [
      "its host name",
      () => void vi.spyOn(Launcher.prototype, "name").mockRejectedValueOnce(new Error("no host name today")),
    ],
    [
      "its record",
      () =>
        void vi
          .spyOn(RuntimeRecords.prototype, "save")
          .mockRejectedValueOnce(new Error("no room for a record")),
    ],
  ])("one whose claim fails over %s is undone, and the spawn goes on", async (_, fail) => {
    await spawn();
    const waiting = await stocked();
    fail();
    const one = await spawn();
    expect(one.isClaimed).toBe(false);
    await works(one);
    expect(watch.said).toContain("a prepared container could not be claimed, and another one is made");
    const again = await stocked();
    expect(again.filter((name) => waiting.includes(name))).toHaveLength(1);
    expect((await preparedFolders(docker.dataDir)).sort()).toEqual(again.sort());
    expect((await docker.provider.inventory(soon())).every(({ state }) => state === "running")).toBe(true);
  });

  it("one whose claim fails and cannot be removed yet leaves nothing in the folder of the container that is made instead", async () => {
    await spawn();
    const waiting = await stocked();
    const folders: boolean[] = [];
    const create = ContainerMaker.prototype.create;
    vi.spyOn(ContainerMaker.prototype, "create").mockImplementation(function (
      this: ContainerMaker,
      spec,
      options,
    ) {
      if (!isPrepared(spec.runtimeId))
        folders.push(existsSync(join(docker.dataDir, "runtimes/docker", spec.runtimeId, "sock/agent.sock")));
      return create.call(this, spec, options);
    });
    vi.spyOn(Containers.prototype, "rename").mockRejectedValueOnce(new Error("no name today"));
    vi.spyOn(Containers.prototype, "remove").mockRejectedValueOnce(new Error("no removal today"));
    const one = await spawn();
    expect(folders).toEqual([false]);
    await docker.provider.inventory(soon());
    const left = async () =>
      (await preparedNames(engine, docker.instanceId)).filter((name) => waiting.includes(name));
    await expect.poll(left, { timeout: 20_000 }).toHaveLength(1);
    await works(one);
    expect(await docker.provider.inventory(soon())).toHaveLength(2);
  });

  it("a request that no container can meet fails as it would cold, and leaves nothing", async () => {
    await spawn();
    await stocked();
    await expect(spawn({ user: "nobody-here" })).rejects.toThrow(BadRequest);
    expect(await docker.provider.inventory(soon())).toHaveLength(1);
    await stocked();
  });

  it("a caller who leaves while one is claimed leaves nothing", async () => {
    await spawn();
    await stocked();
    const leaving = new AbortController();
    const renamed = Containers.prototype.rename;
    vi.spyOn(Containers.prototype, "rename").mockImplementationOnce(async function (
      this: Containers,
      ...told
    ) {
      leaving.abort(new Error("the caller is gone"));
      return renamed.apply(this, told);
    });
    const spec = specOf();
    await expect(docker.provider.spawn(spec, { signal: leaving.signal })).rejects.toThrow(
      "the caller is gone",
    );
    await stocked();
    expect((await docker.provider.inventory(soon())).map(({ runtimeId }) => runtimeId)).not.toContain(
      spec.runtimeId,
    );
    expect((await containersOf(engine, docker.instanceId)).has(spec.runtimeId)).toBe(false);
  });

  it("one that was claimed is known to the next service, by its record and its name alone", async () => {
    await spawn();
    await stocked();
    const one = await spawn();
    const next = await docker.restart();
    const found = await next.inventory(soon());
    expect(found.find(({ runtimeId }) => runtimeId === one.runtimeId)).toMatchObject({
      state: "running",
      sandboxId: one.sandboxId,
    });
    await next.adopt(one.runtimeId, soon());
    expect((await runScript(next.sandbox(one.runtimeId), "hostname")).output).toBe(`${one.sandboxId}\n`);
    const record = join(docker.dataDir, "runtimes/docker", one.runtimeId, "runtime.json");
    const text = await readFile(record, "utf8");
    // A record that another release wrote is not read, and its container not taken for nobody's.
    await writeFile(record, JSON.stringify({ ...JSON.parse(text), version: 2 }));
    const unread = (await next.inventory(soon())).find(({ runtimeId }) => runtimeId === one.runtimeId);
    expect(unread).toEqual({ runtimeId: one.runtimeId, state: "unreadable" });
    // And of one whose folder is lost it is known that it was somebody's.
    await rename(dirname(record), `${docker.dataDir}/lost`);
    const lost = (await next.inventory(soon())).find(({ runtimeId }) => runtimeId === one.runtimeId);
    expect(lost).toEqual({ runtimeId: one.runtimeId, state: "dead" });
    await next.destroy(one.runtimeId, soon());
    expect((await containersOf(engine, docker.instanceId)).has(one.runtimeId)).toBe(false);
  });

  it("the end of one that was claimed is told, whoever ended it", async () => {
    await spawn();
    await stocked();
    const one = await spawn();
    const ended: string[] = [];
    using _ = { [Symbol.dispose]: docker.provider.onExit((runtimeId) => ended.push(runtimeId)) };
    await inDocker("kill", nameOf(one.runtimeId));
    await expect.poll(() => ended, { timeout: 15_000 }).toEqual([one.runtimeId]);
  });

  it("what an earlier service left is removed by the first inventory, and is an installation's", async () => {
    await spawn();
    const waiting = await stocked();
    const orphans = await orphanedContainers(docker.instanceId, { socket: engine.socket, ...soon() });
    expect(orphans.ids).toHaveLength(3);
    // Of another installation: a copy of the directory that was given a new identity.
    const other = await openDocker(engine, { image, config: { prepared: 2 } });
    onTestFinished(() => other.close());
    await other.provider.inventory(soon());
    expect((await preparedNames(engine, docker.instanceId)).sort()).toEqual(waiting.sort());
    const next = await openDocker(engine, { image, dataDir: docker.dataDir, instanceId: docker.instanceId });
    expect(await next.provider.inventory(soon())).toHaveLength(1);
    await expect
      .poll(
        async () => (await preparedNames(engine, docker.instanceId)).filter((name) => waiting.includes(name)),
        {
          timeout: 20_000,
        },
      )
      .toEqual([]);
    await next.provider[Symbol.asyncDispose]();
  });

  it("whoever lacks room for a new one gets that of those that wait", async () => {
    await spawn();
    const waiting = await stocked();
    const start = Containers.prototype.start;
    let refused = 0;
    vi.spyOn(Containers.prototype, "start").mockImplementation(async function (
      this: Containers,
      container,
      options,
    ) {
      if ((await preparedNames(engine, docker.instanceId)).length > 0) {
        refused += 1;
        const cause = new EngineRefusal({ method: "POST", path: "/start" }, 500, "no space left on device");
        throw new Error("the Docker Engine could not start", { cause });
      }
      return start.call(this, container, options);
    });
    const one = await spawn({ memoryMb: 128 });
    expect([one.isClaimed, refused]).toEqual([false, 1]);
    const left = await preparedNames(engine, docker.instanceId);
    expect(left.filter((name) => waiting.includes(name))).toEqual([]);
  });

  it("a burst beyond those that wait is served", async () => {
    await spawn();
    await stocked();
    const burst = await Promise.all(Array.from({ length: 8 }, () => spawn()));
    expect(burst.filter(({ isClaimed }) => isClaimed)).toHaveLength(2);
    for (const one of burst) await works(one);
    expect(await docker.provider.inventory(soon())).toHaveLength(9);
    await Promise.all(burst.map(({ runtimeId }) => docker.provider.destroy(runtimeId, soon())));
    await stocked();
  });

  it.each<[string, () => void, string]>([
    [
      "processes",
      () => {
        const refusal = new LauncherFailure("engine", "process 1 is not one of container 1 here");
        vi.spyOn(Launcher.prototype, "name").mockRejectedValue(refusal);
      },
      "process 1 is not one of container 1 here",
    ],
    [
      "files",
      () => {
        const inspect = Containers.prototype.inspect;
        vi.spyOn(Containers.prototype, "inspect").mockImplementation(async function (
          this: Containers,
          ...told
        ) {
          const found = await inspect.apply(this, told);
          return found && { ...found, HostnamePath: "/not/here/hostname" };
        });
      },
      "/not/here/hostname",
    ],
  ])("where the engine's %s are not seen one attempt says so, and spawns go on", async (_, hide, why) => {
    hide();
    const created = vi.spyOn(ContainerMaker.prototype, "create");
    const attempts = () => created.mock.calls.filter(([spec]) => isPrepared(spec.runtimeId)).length;
    await works(await spawn());
    await expect
      .poll(() => watch.said, { timeout: 15_000 })
      .toContain("no container could be prepared; it is tried again");
    expect(watch.why.join("\n")).toContain(why);
    for (let i = 0; i < 3; i += 1) {
      const one = await spawn();
      expect(one.isClaimed).toBe(false);
      await works(one);
      await new Promise((resolve) => setTimeout(resolve, 300));
    }
    expect(attempts()).toBe(1);
    expect(await preparedFolders(docker.dataDir)).toEqual([]);
  });

  it("are told of where none can be made, and spawns go on", async () => {
    await docker.close();
    await open({ agentTransport: "stdio" });
    const { notes } = await docker.provider.check(soon());
    expect(notes.join("\n")).toContain(
      "no sandboxes are prepared (providers.docker.prepared): providers.docker.agent_transport is stdio",
    );
    const one = await spawn();
    await works(one);
    await docker.provider.destroy(one.runtimeId, soon());
    expect(await preparedNames(engine, docker.instanceId)).toEqual([]);
  });
});
