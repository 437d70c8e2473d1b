import { type ChildProcess, spawn as spawnProcess } from "node:child_process";
import { once } from "node:events";
import { copyFile, mkdtempDisposable, readFile, rename, symlink, writeFile } from "node:fs/promises";
import { createServer } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { setTimeout as delay } from "node:timers/promises";
import { fileURLToPath } from "node:url";
import { afterEach, beforeAll, expect, it, vi } from "vitest";
import { agentBinary } from "../../../test/support/agent-binary.ts";
import { sharedEngine, startEngine, type TestEngine } from "../../../test/support/docker-engine.ts";
import {
  containerOf,
  type DockerUnderTest,
  dockerConfig,
  openDocker,
} from "../../../test/support/docker-provider.ts";
import { mustRun } from "../../../test/support/programs.ts";
import { startRegistry } from "../../../test/support/registry.ts";
import { describeWith } from "../../../test/support/requirements.ts";
import { busyboxImage, busyboxRootfs, importImage } from "../../../test/support/tiny-images.ts";
import type { DockerConfig } from "../../config/config.ts";
import { silentLogger } from "../../platform/logger.ts";
import { randomIds } from "../../platform/random-ids.ts";
import { finish, run, shell, soon } from "../../ports/contract/provider/harness.ts";
import {
  BadRequest,
  type ExecId,
  NotFound,
  RuntimeGone,
  type RuntimeId,
  type RuntimeSpec,
  StorageFull,
  Unavailable,
} from "../../ports/index.ts";
import { UnreadableRecord } from "../runtime-records/index.ts";

await describeWith(["docker", "agent", "busybox"], "DockerProvider", () => {
  let engine: TestEngine;
  const opened: DockerUnderTest[] = [];
  const children: ChildProcess[] = [];

  /** A provider whose sandboxes, and itself, the end of the test takes away. */
  const open = async (config: Partial<DockerConfig> = {}, more: Parameters<typeof openDocker>[1] = {}) => {
    const docker = await openDocker(engine, { config, ...more });
    opened.push(docker);
    return docker;
  };
  const spawnIn = async (docker: DockerUnderTest, change: Partial<RuntimeSpec> = {}) => {
    const spec = containerOf(change);
    await docker.provider.spawn(spec, soon(30_000));
    return { ...spec, operations: docker.provider.sandbox(spec.runtimeId) };
  };
  const containersOf = async (docker: DockerUnderTest) => {
    const args = ["-H", engine.socket, "ps", "-aq", "--filter", `label=alcove.instance=${docker.instanceId}`];
    return (await mustRun("docker", args)).stdout.trim();
  };

  beforeAll(async () => {
    engine = await sharedEngine();
  });
  afterEach(async () => {
    for (const child of children.splice(0)) child.kill("SIGKILL");
    for (const docker of opened.splice(0)) {
      const cleaner = await docker.restart();
      for (const { runtimeId } of await cleaner.inventory(soon()))
        await cleaner.destroy(runtimeId, soon(30_000));
      expect(await containersOf(docker)).toBe("");
      await docker.close();
    }
  });

  it("an image's ENV, USER and WORKDIR apply, the request's win, /workspace is there all the same", async () => {
    const image = "alcove-test/configured:1";
    const changes = [
      "ENV COLOUR=red",
      "ENV SIZE=big",
      "USER app",
      "WORKDIR /srv/app",
      "CMD false",
      "ENTRYPOINT false",
    ];
    await importImage(engine, (await busyboxRootfs()).tar, image, changes);
    const docker = await open();
    const { operations } = await spawnIn(docker, { image, env: { SIZE: "small" } });
    const script = 'echo "$COLOUR $SIZE $(id -un) $(pwd)"; test -w /workspace && echo writable';
    expect((await run(operations, script)).stdout).toBe("red small app /srv/app\nwritable\n");
  });

  it("an engine that a sandbox was not made at neither says that it ended nor ends it; its own under another address does", async () => {
    const docker = await open();
    const { runtimeId } = await spawnIn(docker);
    await using far = await startEngine();
    const options = { dataDir: docker.dataDir, instanceId: docker.instanceId };
    await using there = (await openDocker(far, options)).provider;
    const warn = vi.spyOn(silentLogger, "warn");
    for (let times = 0; times < 2; times += 1)
      expect(await there.inventory(soon())).toMatchObject([{ runtimeId, state: "elsewhere" }]);
    const places = { made_at: engine.socket, asked_at: far.socket };
    expect(warn.mock.calls.filter(([said]) => (said as object) && "made_at" in (said as object))).toEqual([
      [places, expect.stringMatching(`${engine.socket}.*${far.socket}`)],
    ]);
    warn.mockRestore();
    const both = expect.stringMatching(`${engine.socket}.*${far.socket}`);
    const message = expect.not.stringContaining(engine.socket);
    const refused = { name: "RuntimeElsewhere", message, cause: expect.objectContaining({ message: both }) };
    await expect(there.adopt(runtimeId, soon())).rejects.toMatchObject(refused);
    await expect(there.destroy(runtimeId, soon())).rejects.toMatchObject(refused);
    expect(await containersOf(docker)).not.toBe("");
    await using folder = await mkdtempDisposable(join(tmpdir(), "alcove-renamed-"));
    const renamed = join(folder.path, "engine.sock");
    await symlink(engine.socketPath, renamed);
    await using again = (await openDocker({ socket: `unix://${renamed}`, socketPath: renamed }, options))
      .provider;
    expect(await again.inventory(soon())).toMatchObject([{ runtimeId, state: "running" }]);
    await again.adopt(runtimeId, soon());
    expect((await run(again.sandbox(runtimeId), "echo works")).stdout).toBe("works\n");
    await again.destroy(runtimeId, soon(30_000));
    expect(await again.inventory(soon())).toEqual([]);
  });

  it("the agent's volume may be removed while no sandbox uses it: the next spawn has an agent again", async () => {
    const docker = await open({ agentTransport: "stdio" });
    const first = await spawnIn(docker);
    await docker.provider.destroy(first.runtimeId, soon());
    const volumes = [
      "-H",
      engine.socket,
      "volume",
      "ls",
      "-q",
      "--filter",
      `name=alcove-agent-${docker.instanceId.slice(0, 12)}`,
    ];
    const volume = (await mustRun("docker", volumes)).stdout.trim();
    await mustRun("docker", ["-H", engine.socket, "volume", "rm", volume]);
    const spawned = await Promise.all([spawnIn(docker), spawnIn(docker)]);
    for (const { operations } of spawned)
      expect((await run(operations, "echo works")).stdout).toBe("works\n");
  });

  it("an image whose /workspace is a symlink to nowhere is a BadRequest, whatever its working directory", async () => {
    await using folder = await mkdtempDisposable(join(tmpdir(), "alcove-link-"));
    const tar = join(folder.path, "root.tar");
    await copyFile((await busyboxRootfs()).tar, tar);
    await symlink("/nowhere", join(folder.path, "workspace"));
    await mustRun("tar", ["-rf", tar, "-C", folder.path, "workspace"]);
    const docker = await open();
    for (const changes of [[], ["WORKDIR /srv"]]) {
      const image = `alcove-test/dangling:${changes.length}`;
      await importImage(engine, tar, image, changes);
      const refused = docker.provider.spawn(containerOf({ image }), soon(30_000));
      await expect(refused).rejects.toMatchObject({
        code: "bad_request",
        message: expect.stringMatching(/\/workspace .*leads nowhere/),
      });
    }
    expect(await docker.provider.inventory(soon())).toEqual([]);
  });

  it("an image with labels of more than 64 KB is a BadRequest that says so, and leaves nothing", async () => {
    const image = "alcove-test/labelled:1";
    await importImage(engine, (await busyboxRootfs()).tar, image, [
      `LABEL much=${"x".repeat(35_000)}`,
      `LABEL more=${"x".repeat(35_000)}`,
    ]);
    const docker = await open();
    await expect(docker.provider.spawn(containerOf({ image }), soon(30_000))).rejects.toMatchObject({
      code: "bad_request",
      message: expect.stringMatching(
        /^image alcove-test\/labelled:1 has 69 KB of configuration; its labels, .* 64 KB/,
      ),
    });
    expect(await containersOf(docker)).toBe("");
  });

  it("a read-only image leaves the sandbox its workspace", async () => {
    const docker = await open({ readOnlyRootfs: true, tmpfs: ["/cache:size=1m"] });
    const { operations } = await spawnIn(docker);
    const script = "touch /new 2>&1; touch /workspace/a /tmp/b /cache/c && echo written";
    expect((await run(operations, script)).stdout).toMatch(/Read-only file system\nwritten/);
  });

  it("added capabilities reach commands, and no others", async () => {
    const docker = await open({ addedCaps: ["NET_RAW"] });
    const { operations } = await spawnIn(docker);
    expect((await run(operations, "grep CapEff /proc/self/status")).stdout).toMatch(/0000000000002000/);
  });

  it("namespaces are for those to whom the operator gives the capability for them", async () => {
    const namespace = async (addedCaps: string[]) => {
      const { operations } = await spawnIn(await open({ addedCaps }));
      return (await run(operations, "unshare -u true 2>&1 && echo made")).stdout;
    };
    expect(await namespace([])).toContain("Operation not permitted");
    expect(await namespace(["CAP_SYS_ADMIN"])).toBe("made\n");
  });

  it("who is seen with more than disk_mb is stopped with the reason, volumes of its image included; others go on", async () => {
    const image = "alcove-test/volume:1";
    await importImage(engine, (await busyboxRootfs()).tar, image, ["VOLUME /data"]);
    const docker = await open({ diskMb: 20 });
    const [small, large] = [await spawnIn(docker), await spawnIn(docker, { image })];
    const told: [RuntimeId, string][] = [];
    docker.provider.onExit((runtimeId, reason) => told.push([runtimeId, reason]));
    await run(small.operations, "dd if=/dev/zero of=/file bs=1M count=10");
    await run(large.operations, "dd if=/dev/zero of=/data/file bs=1M count=8");
    // Neither in the layer nor in a volume; nor in any folder. It takes all three to be too much.
    await run(large.operations, "head -c 6291456 /dev/zero >> /etc/hosts");
    const held = "exec 3>/held; rm /held; head -c 7340032 /dev/zero >&3; sleep 30";
    await run(large.operations, held).catch(() => undefined);
    await expect.poll(() => told, { timeout: 15_000 }).toHaveLength(1);
    // It is seen while it writes the last of 21.
    const reason = /^stopped: it had written 2[01] MB, more than the 20 MB of providers.docker.disk_mb$/;
    expect(told).toEqual([[large.runtimeId, expect.stringMatching(reason)]]);
    expect(() => docker.provider.sandbox(large.runtimeId)).toThrow(RuntimeGone);
    expect((await run(small.operations, "echo on")).stdout).toBe("on\n");
    expect((await containersOf(docker)).split("\n")).toHaveLength(1);
  }, 30_000);

  it("below min_free_mb of the engine's disk nothing is spawned, and check() says so", async () => {
    const { provider } = await open({ minFreeMb: 1_000_000_000 });
    await expect(provider.spawn(containerOf(), soon(30_000))).rejects.toThrow(StorageFull);
    expect(provider.guards).toEqual([{ guard: "disk", helpless: false }]);
    expect((await provider.check(soon())).cannotSpawn).toMatch(
      /no sandbox can be made: .* free on the Docker Engine's disk.*providers.docker.min_free_mb/,
    );
    expect(await provider.inventory(soon())).toEqual([]);
  });

  it("a request cannot open the network, and leaves nothing behind", async () => {
    const docker = await open();
    await expect(docker.provider.spawn(containerOf({ network: "outbound" }), soon())).rejects.toThrow(
      BadRequest,
    );
    expect(await docker.provider.inventory(soon())).toEqual([]);
  });

  it("two instances on one engine never touch each other's sandboxes", async () => {
    const [one, two] = [await open(), await open()];
    const mine = await spawnIn(one);
    expect(await two.provider.inventory(soon())).toEqual([]);
    await two.provider.destroy(mine.runtimeId, soon());
    await expect(two.provider.adopt(mine.runtimeId, soon())).rejects.toThrow(RuntimeGone);
    expect((await run(mine.operations, "echo untouched")).stdout).toBe("untouched\n");
  });

  it("a container removed behind our back is told once, with a reason, and a repeated spawn starts over", async () => {
    const docker = await open();
    const { provider } = docker;
    const spec = containerOf();
    await provider.spawn(spec, soon(30_000));
    const told: [RuntimeId, string][] = [];
    const ended = Promise.withResolvers<void>();
    provider.onExit((runtimeId, reason) => {
      told.push([runtimeId, reason]);
      ended.resolve();
    });
    await mustRun("docker", ["-H", engine.socket, "kill", await containersOf(docker)]);
    await ended.promise;
    expect(told).toEqual([[spec.runtimeId, expect.stringContaining("exit code 137")]]);
    expect(() => provider.sandbox(spec.runtimeId)).toThrow(RuntimeGone);
    expect((await provider.inventory(soon())).map((entry) => entry.state)).toEqual(["dead"]);
    await provider.spawn(spec, soon(30_000));
    expect((await run(provider.sandbox(spec.runtimeId), "echo again")).stdout).toBe("again\n");
    expect(told).toHaveLength(1);
  });

  it("a folder without a container and a container without a folder are both in the inventory", async () => {
    const docker = await open();
    const [kept, lost] = [await spawnIn(docker), await spawnIn(docker)];
    const container = `alcove-${docker.instanceId.slice(0, 12)}-${kept.runtimeId}`;
    await mustRun("docker", ["-H", engine.socket, "rm", "-f", container]);
    await rename(`${docker.dataDir}/runtimes/docker/${lost.runtimeId}`, `${docker.dataDir}/elsewhere`);
    const again = await docker.restart();
    const entries = await again.inventory(soon());
    for (const { runtimeId, sandboxId } of [kept, lost]) {
      expect(entries).toContainEqual(expect.objectContaining({ runtimeId, sandboxId, state: "dead" }));
    }
  });

  it("a record of another release is never taken for none: its sandbox is not dead, and is adopted by a release that reads it", async () => {
    const docker = await open();
    const { runtimeId, sandboxId } = await spawnIn(docker);
    const file = `${docker.dataDir}/runtimes/docker/${runtimeId}/runtime.json`;
    const record = await readFile(file, "utf8");
    await writeFile(file, record.replace('"version":1', '"version":2'));
    const again = await docker.restart();
    expect(await again.inventory(soon())).toEqual([{ runtimeId, sandboxId, state: "unreadable" }]);
    await expect(again.adopt(runtimeId, soon())).rejects.toThrow(UnreadableRecord);
    await writeFile(file, record);
    await again.adopt(runtimeId, soon());
    expect((await run(again.sandbox(runtimeId), "echo still here")).stdout).toBe("still here\n");
  });

  it("adopt() refuses a socket that is not the one the agent made", async () => {
    const docker = await open({ agentTransport: "socket" });
    const { runtimeId } = await spawnIn(docker);
    const path = `${docker.dataDir}/runtimes/docker/${runtimeId}/sock/agent.sock`;
    await rename(path, `${path}.old`);
    const impostor = createServer();
    impostor.listen(path);
    await once(impostor, "listening");
    await expect((await docker.restart()).adopt(runtimeId, soon())).rejects.toThrow(RuntimeGone);
    impostor.close();
  });

  it("a service killed at any moment leaves what the next one adopts or undoes", async () => {
    const docker = await open();
    const program = fileURLToPath(
      new URL("../../../test/support/programs/docker-service.ts", import.meta.url),
    );
    const specs = [containerOf(), containerOf(), containerOf()];
    const script = "echo before; read line; echo after $line";
    const options = {
      config: dockerConfig(engine),
      dataDir: docker.dataDir,
      instanceId: docker.instanceId,
      agentBinary: agentBinary("alcove-agent"),
      launcherBinary: agentBinary("alcove-launch"),
      pullPolicy: "never",
    };
    for (const killAfterMs of [0, 60, 150, 300, 600]) {
      const order = JSON.stringify({
        options,
        specs: specs.map((spec) => ({ ...spec, runtimeId: randomIds.runtimeId() })),
        script,
      });
      const child = spawnProcess(process.execPath, [program, order], {
        stdio: ["ignore", "pipe", "inherit"],
      });
      children.push(child);
      const finished: RuntimeId[] = [];
      const started = Promise.withResolvers<void>();
      createInterface({ input: child.stdout }).on("line", (line) => {
        if (line === "started") started.resolve();
        else finished.push(line.slice("spawned ".length) as RuntimeId);
      });
      await started.promise;
      await delay(killAfterMs);
      const exited = once(child, "exit");
      child.kill("SIGKILL");
      await exited;
      const next = await docker.restart();
      for (const runtimeId of finished) {
        await next.adopt(runtimeId, soon());
        const { execs } = next.sandbox(runtimeId);
        const execId = "ex-survivor1" as ExecId;
        await using view = await execs.attach(execId, { ...soon(), from: 0, follow: true, lossless: true });
        await view.writeStdin(Buffer.from("kill\n"));
        expect((await finish(view)).stdout).toBe("before\nafter kill\n");
      }
      // Creating may still be under way in the engine: what appears later, the next look finds.
      await expect
        .poll(
          async () => {
            for (const { runtimeId } of await next.inventory(soon()))
              await next.destroy(runtimeId, soon(30_000));
            return [await containersOf(docker), await next.inventory(soon())];
          },
          { timeout: 30_000 },
        )
        .toEqual(["", []]);
      await next[Symbol.asyncDispose]();
    }
  }, 90_000);

  it("destroy() during a spawn ends it and leaves nothing", async () => {
    const { provider } = await open();
    const spec = containerOf();
    const spawning = provider.spawn(spec, soon(30_000)).catch((error: unknown) => error);
    await provider.destroy(spec.runtimeId, soon(30_000));
    expect(await spawning).toBeInstanceOf(RuntimeGone);
    expect(await provider.inventory(soon())).toEqual([]);
  });

  it("one owner's many spawns leave another's its turn", async () => {
    const docker = await open();
    const spawn = (ownerId: string) =>
      docker.provider.spawn(containerOf({ ownerId, memoryMb: 16 }), soon(100_000));
    await spawn("warm-up");
    let ended = 0;
    const theirs = Array.from({ length: 24 }, () => spawn("greedy").finally(() => ended++));
    await spawn("modest");
    expect(ended).toBeLessThan(8);
    await Promise.all(theirs);
  }, 120_000);

  it("check() names what is wrong and the way out", async () => {
    const cases: [Partial<DockerConfig>, string][] = [
      [{ socket: "unix:///nowhere/docker.sock" }, "the socket does not exist; start dockerd"],
      [{ socket: "tcp://127.0.0.1:1" }, "nothing listens there; start dockerd"],
      [{ runtime: "kata" }, 'it has no runtime "kata" (providers.docker.runtime); it has'],
      [{ seccompProfile: "/nowhere.json" }, "providers.docker.seccomp_profile /nowhere.json cannot be read"],
    ];
    for (const [config, error] of cases) {
      const { provider } = await open();
      const docker = await openDocker(engine, { config });
      expect(await docker.provider.check(soon())).toMatchObject({
        healthy: false,
        error: expect.stringContaining(error),
      });
      await docker.close();
      expect((await provider.check(soon())).healthy).toBe(true);
    }
  });

  it("an engine that goes away is Unavailable, and the error names it", async () => {
    const own = await startEngine();
    const docker = await openDocker(own);
    const spec = containerOf();
    await docker.provider.spawn(spec, soon(30_000));
    await own[Symbol.asyncDispose]();
    await expect(docker.provider.spawn(containerOf(), soon())).rejects.toThrow(Unavailable);
    await expect(docker.provider.inventory(soon())).rejects.toThrow(/no Docker Engine at/);
    await docker.close();
  });
});

await describeWith(
  ["docker", "agent", "busybox", "registry", "skopeo"],
  "DockerProvider with a registry",
  () => {
    it("spawn() pulls an image that is missing, and says NotFound for one that no registry has", async () => {
      const engine = await sharedEngine();
      await using registry = await startRegistry();
      const docker = await openDocker(engine, {
        pullPolicy: "missing",
        allowedRegistries: [registry.address],
      });
      const image = await registry.push(engine, busyboxImage, "pulled:1");
      const spec = containerOf({ image });
      const spawned = await docker.provider.spawn(spec, soon(30_000));
      expect(spawned.image).toBe(image);
      expect((await run(docker.provider.sandbox(spec.runtimeId), shell("echo pulled"))).stdout).toBe(
        "pulled\n",
      );
      await docker.provider.destroy(spec.runtimeId, soon());
      const unknown = docker.provider.spawn(containerOf({ image: `${registry.address}/none:1` }), soon());
      await expect(unknown).rejects.toThrow(NotFound);
      expect(await docker.provider.inventory(soon())).toEqual([]);
      await mustRun("docker", ["-H", engine.socket, "rmi", image]);
      await docker.close();
    });
  },
);
