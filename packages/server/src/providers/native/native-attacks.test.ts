import { spawn } from "node:child_process";
import { once } from "node:events";
import { readFile, rm, writeFile } from "node:fs/promises";
import { createServer } from "node:net";
import { join } from "node:path";
import { Readable } from "node:stream";
import { afterAll, beforeAll, expect, it } from "vitest";
import { projectRoot } from "../../../test/support/agent-binary.ts";
import { attackProbe, runScript } from "../../../test/support/attack-probe.ts";
import { attackColumn, attacksAs } from "../../../test/support/attack-table.ts";
import { type NativeHome, nativeHome, testImage } from "../../../test/support/native.ts";
import { compileProbe } from "../../../test/support/probe.ts";
import { describeWith } from "../../../test/support/requirements.ts";
import { randomIds } from "../../platform/random-ids.ts";
import { BadRequest, type ExecExit, type RuntimeId, type SandboxOperations } from "../../ports/index.ts";
import type { NativeProvider } from "./native-provider.ts";

const soon = (ms = 15_000) => ({ signal: AbortSignal.timeout(ms) });

interface Sandbox {
  runtimeId: RuntimeId;
  operations: SandboxOperations;
  run(
    script: string,
    change?: { user?: string; timeoutMs?: number },
  ): Promise<{ output: string; exit: ExecExit | undefined }>;
}

await describeWith(
  ["root", "agent", "launcher", "native", "busybox", "compiler"],
  "attacks from inside",
  () => {
    let home: NativeHome;
    let provider: NativeProvider;
    let probe: Buffer;
    const made: RuntimeId[] = [];

    beforeAll(async () => {
      probe = await attackProbe();
      process.env.ALCOVE_TEST_SECRET = "leaked";
      home = await nativeHome();
      provider = home.open();
    }, 120_000);

    afterAll(async () => {
      delete process.env.ALCOVE_TEST_SECRET;
      await Promise.all(made.map((runtimeId) => provider.destroy(runtimeId, soon())));
      expect(await provider.inventory(soon())).toEqual([]);
      await provider[Symbol.asyncDispose]();
      await home.remove();
    });

    async function sandbox(options: { image?: string; memoryMb?: number } = {}): Promise<Sandbox> {
      const runtimeId = randomIds.runtimeId();
      made.push(runtimeId);
      const sandboxId = randomIds.sandboxId();
      const { image = testImage, memoryMb = 128 } = options;
      await provider.spawn(
        { runtimeId, sandboxId, image, memoryMb, vcpus: 1, env: {}, expiresInMs: 600_000, metadata: {} },
        soon(),
      );
      const operations = provider.sandbox(runtimeId);
      return { runtimeId, operations, run: (script, change = {}) => runScript(operations, script, change) };
    }

    it.each([undefined, "1000"])("every forbidden call is refused to user %s", async (user) => {
      const { operations, run } = await sandbox();
      await operations.files.write("/tmp/probe", Readable.from([probe]), { ...soon(), mode: 0o755 });
      const { output } = await run("/tmp/probe", user === undefined ? {} : { user });
      const outcomes = new Map(
        output
          .trim()
          .split("\n")
          .map((line) => [line.split(" ")[0], line]),
      );
      expect(outcomes.size).toBeGreaterThan(50);
      // A signal to PID 1 of a namespace vanishes: the kernel says yes and does nothing.
      outcomes.delete("kill-agent");
      const notRefused = [...outcomes.values()].filter((line) => !line.includes(" refused "));
      expect(notRefused).toEqual([]);
      expect((await run("echo alive")).output).toBe("alive\n");
    });

    it("what gets through is what the table of attacks says", async () => {
      const { operations } = await sandbox();
      expect(await attacksAs(operations, ["0", "1000"])).toEqual(attackColumn("native"));
    });

    it("no command can kill, trace or look into the agent", async () => {
      const { run } = await sandbox();
      await run("kill -9 1; kill -TERM 1; kill -STOP 1");
      const { output } = await run(
        "cat /proc/1/environ; readlink /proc/1/fd/3; ls /proc/1/root/ /proc/1/cwd/; readlink /proc/1/exe; echo x > /proc/1/mem; echo done",
      );
      expect(output.replaceAll(/^.*(Permission denied|can't).*$/gm, "").trim()).toBe("done");
    });

    it.each(["0", "1000"])("user %s can cripple neither its agent nor its monitor", async (user) => {
      const { operations, run } = await sandbox();
      const content = Readable.from([await compileProbe()]);
      await operations.files.write("/tmp/cripple", content, { ...soon(), mode: 0o755 });
      const { output, exit } = await run("exec /tmp/cripple --cripple", { user });
      const attempts = output.trim().split("\n");
      expect(attempts).toHaveLength(18);
      expect(attempts.filter((line) => !/ (EPERM|EACCES)$/.test(line))).toEqual([]);
      expect(exit).toMatchObject({ exitCode: 0, reason: "exited" });
      expect((await run("echo alive")).output).toBe("alive\n");
      const asAgent = run("true", { user: "65533" });
      await expect(asAgent).rejects.toThrow("user id of the agent");
    });

    it("while files are written for a user, the agent's own in /proc are closed to the sandbox's root", async () => {
      const { operations, run } = await sandbox();
      const attack =
        "for i in $(seq 2000); do (echo 1000 > /proc/1/oom_score_adj) 2>/dev/null && echo written; done; echo done";
      const attacked = run(attack);
      let ended = false;
      void attacked.finally(() => {
        ended = true;
      });
      // Slowly, so that the agent stays the user for as long as it is attacked.
      const content = Readable.from(
        (async function* () {
          while (!ended) {
            yield Buffer.from("x");
            await new Promise((resolve) => setTimeout(resolve, 20));
          }
        })(),
      );
      await operations.files.write("/tmp/slowly", content, { ...soon(45_000), user: "1000" });
      expect((await attacked).output).toBe("done\n");
      expect((await run("cat /proc/1/oom_score_adj")).output).toBe("0\n");
    });

    it("the agent's socket, the service's files, environment and descriptors are not there", async () => {
      const { run } = await sandbox({ image: "host" });
      expect((await run("grep agent.sock /proc/net/unix")).output).toBe("");
      const { output } = await run(
        `ls ${home.dataDir} ${projectRoot} /root /home /etc/shadow /run 2>&1; env; ls -l /proc/self/fd`,
      );
      expect(output).not.toContain("leaked");
      expect(output).not.toContain("agent.sock");
      expect(output).toContain(`${home.dataDir}': No such file`);
      const descriptors = output.split("\n").filter((line) => / \d+ -> /.test(line));
      // Standard streams, and the directory ls itself reads.
      expect(descriptors.length).toBeLessThanOrEqual(4);
      expect((await run("cat /proc/self/mountinfo")).output).not.toContain(home.dataDir);
    });

    it("image host shows a made-up /etc and programs that cannot be changed", async () => {
      const { run } = await sandbox({ image: "host" });
      const { output } = await run(
        "cat /etc/passwd; touch /usr/bin/own 2>&1; echo own > /etc/own && cat /etc/own; ls /opt",
      );
      expect(output).toContain("root:x:0:0");
      expect(output).toContain("Read-only file system");
      expect(output).toMatch(/own\n$/);
      // Installers look here for what they are on.
      expect((await run("cat /etc/os-release")).output).toMatch(/^NAME=/m);
    });

    it("servers and abstract sockets of the host cannot be reached", async () => {
      const tcp = createServer((socket) => socket.end("from the host")).listen(0, "127.0.0.1");
      const abstract = createServer((socket) => socket.end("from the host")).listen(
        `\0alcove-attack-${process.pid}`,
      );
      try {
        await Promise.all([once(tcp, "listening"), once(abstract, "listening")]);
        const address = tcp.address();
        const port = address !== null && typeof address === "object" ? address.port : 0;
        const { run } = await sandbox();
        const { output } = await run(
          `nc -w 2 127.0.0.1 ${port} </dev/null; grep -c alcove-attack /proc/net/unix; ls /sys/class/net`,
        );
        expect(output).not.toContain("from the host");
        expect(output).toMatch(/^0$/m);
      } finally {
        tcp.close();
        abstract.close();
      }
    });

    it("a request cannot open the network wider than the configuration", async () => {
      const spec = {
        sandboxId: randomIds.sandboxId(),
        image: testImage,
        memoryMb: 64,
        vcpus: 1,
        env: {},
        expiresInMs: 60_000,
        metadata: {},
      };
      for (const network of ["host", "outbound"] as const) {
        const runtimeId = randomIds.runtimeId();
        await expect(provider.spawn({ ...spec, runtimeId, network }, soon())).rejects.toThrow(BadRequest);
      }
    });

    it("a setuid file has no effect", async () => {
      const { run } = await sandbox();
      await run("cp /bin/busybox /tmp/id && chown 0:0 /tmp/id && chmod 4755 /tmp/id");
      expect((await run("/tmp/id -u; ls -l /tmp/id", { user: "1000" })).output).toMatch(/^1000\n-rws/);
    });

    it("files and processes of another sandbox and of the service are invisible", async () => {
      const [one, other] = [await sandbox(), await sandbox()];
      await one.run("echo mine > /tmp/mine; echo mine > /dev/shm/mine; sleep 987 >/dev/null 2>&1 &");
      const { output } = await other.run("ls /tmp /dev/shm; ps -o pid,args; ls -d /proc/[0-9]*");
      expect(output).not.toContain("mine");
      expect(output).not.toContain("987");
      expect(output).not.toContain("vitest");
    });

    it("two sandboxes share no user of the host, and none is root there", async () => {
      const bases = new Set<number>();
      for (const { runtimeId } of [await sandbox(), await sandbox()]) {
        const { pid } = JSON.parse(
          await readFile(join(home.dataDir, "runtimes/native", runtimeId, "process.json"), "utf8"),
        );
        const map = (await readFile(`/proc/${pid}/uid_map`, "utf8")).trim().split(/\s+/).map(Number);
        expect(map[0]).toBe(0);
        expect(map[1]).toBeGreaterThan(100_000);
        bases.add(map[1] ?? 0);
      }
      expect(bases.size).toBe(2);
    });

    it("a fork bomb stays inside: others answer and its destroy takes less than 5 s", async () => {
      const [bomb, other] = [await sandbox(), await sandbox()];
      // A shell that cannot fork ends, so a bomb of shells alone can burn out; the sleepers stay.
      void bomb.run("bomb() { sleep 60 & bomb | bomb & }; bomb; sleep 60").catch(() => undefined);
      await expect
        .poll(async () => (await bomb.operations.stats(soon())).pids, { timeout: 10_000 })
        .toBeGreaterThan(60);
      expect((await other.run("echo fine")).output).toBe("fine\n");
      const startedAt = performance.now();
      await provider.destroy(bomb.runtimeId, soon());
      expect(performance.now() - startedAt).toBeLessThan(5_000);
    });

    it("a memory bomb is killed with reason oom, and its sandbox goes on", async () => {
      const { run } = await sandbox({ memoryMb: 64 });
      const { exit } = await run("exec dd if=/dev/zero of=/dev/null bs=256M count=4");
      expect(exit?.reason).toBe("oom");
      expect((await run("echo alive")).output).toBe("alive\n");
      const shm = await run("exec dd if=/dev/zero of=/dev/shm/fill bs=1M count=512");
      expect(shm.exit?.exitCode).not.toBe(0);
    });

    it("a disk that is filled stays inside its limit, and its sandbox can be destroyed", async () => {
      const [full, other] = [await sandbox(), await sandbox()];
      const { output } = await full.run(
        "dd if=/dev/zero of=/root/fill bs=1M count=2048 2>&1; df -m / | tail -1",
      );
      expect(output).toContain("No space left");
      const { diskBytes = 0, diskLimitBytes = 0 } = await full.operations.stats(soon());
      expect(diskLimitBytes).toBeGreaterThan(0);
      expect(diskBytes).toBeGreaterThan(diskLimitBytes * 0.9);
      expect((await other.run("echo fine > /root/file && cat /root/file")).output).toBe("fine\n");
      const startedAt = performance.now();
      await provider.destroy(full.runtimeId, soon());
      expect(performance.now() - startedAt).toBeLessThan(5_000);
    });

    it("a service that is killed leaves sandboxes that the next one adopts and destroys", {
      timeout: 40_000,
    }, async () => {
      const service = join(home.dataDir, "service.ts");
      const runtimeId = randomIds.runtimeId();
      await writeFile(service, serviceSource(home.dataDir, runtimeId));
      const child = spawn(process.execPath, [service], { stdio: ["ignore", "pipe", "inherit"] });
      await once(child.stdout, "data");
      child.kill("SIGKILL");
      await once(child, "exit");
      const next = home.open();
      try {
        const found = (await next.inventory(soon())).find((entry) => entry.runtimeId === runtimeId);
        expect(found?.state).toBe("running");
        await next.adopt(runtimeId, soon());
        expect((await runScript(next.sandbox(runtimeId), "cat /tmp/kept")).output).toBe("kept\n");
        await next.destroy(runtimeId, soon());
        expect((await next.inventory(soon())).map((entry) => entry.runtimeId)).not.toContain(runtimeId);
      } finally {
        await next[Symbol.asyncDispose]();
        await rm(service);
      }
    });
  },
);

/** A service of its own process: spawns, says so, and waits to be killed. */
function serviceSource(dataDir: string, runtimeId: RuntimeId): string {
  const support = JSON.stringify(`${projectRoot}/packages/server/test/support/native.ts`);
  const ids = JSON.stringify(`${projectRoot}/packages/server/src/platform/random-ids.ts`);
  return `
import { Readable } from "node:stream";
import { nativeProvider } from ${support};
import { randomIds } from ${ids};
const provider = nativeProvider(${JSON.stringify(dataDir)}, process.env.ALCOVE_TEST_ROOTFS ?? "/");
const signal = AbortSignal.timeout(20_000);
await provider.spawn({ runtimeId: ${JSON.stringify(runtimeId)}, sandboxId: randomIds.sandboxId(), image: "host", memoryMb: 128,
  vcpus: 1, env: {}, expiresInMs: null, metadata: {} }, { signal });
await provider.sandbox(${JSON.stringify(runtimeId)}).files.write("/tmp/kept", Readable.from([Buffer.from("kept\\n")]), { signal });
console.log("ready");
setInterval(() => undefined, 60_000);
`;
}
