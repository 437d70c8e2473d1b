import { existsSync, readdirSync } from "node:fs";
import { readFile } from "node:fs/promises";
import { join } from "node:path";
import { Readable } from "node:stream";
import { afterAll, afterEach, beforeAll, expect, it } from "vitest";
import { attackProbe, runScript } from "../../../test/support/attack-probe.ts";
import { type NativeHome, nativeHome, testImage } from "../../../test/support/native.ts";
import { describeWith } from "../../../test/support/requirements.ts";
import { randomIds } from "../../platform/random-ids.ts";
import type { ExecExit, ExecSpec, ExecUseLimits, RuntimeId, SandboxOperations } from "../../ports/index.ts";
import type { CgroupSpec } from "../launcher/index.ts";
import type { NativeProvider } from "./native-provider.ts";

const soon = (ms = 30_000) => ({ signal: AbortSignal.timeout(ms) });
/** A program whose buffer takes so much. */
const eat = (megabytes: number) => `dd bs=${megabytes}M count=1 if=/dev/zero of=/dev/null 2>/dev/null`;

await describeWith(["root", "agent", "launcher", "native", "busybox"], "limits of single commands", () => {
  let home: NativeHome;
  let provider: NativeProvider;
  let probe: Buffer;
  const made: RuntimeId[] = [];

  beforeAll(async () => {
    probe = await attackProbe();
    home = await nativeHome();
    provider = home.open({ pidsLimit: 128 });
  }, 120_000);

  afterEach(async () => {
    await Promise.all(made.splice(0).map((runtimeId) => provider.destroy(runtimeId, soon())));
  });

  afterAll(async () => {
    await provider[Symbol.asyncDispose]();
    await home.remove();
  });

  async function sandbox(memoryMb = 256): Promise<{ runtimeId: RuntimeId; operations: SandboxOperations }> {
    const runtimeId = randomIds.runtimeId();
    made.push(runtimeId);
    await provider.spawn(
      {
        runtimeId,
        sandboxId: randomIds.sandboxId(),
        image: testImage,
        memoryMb,
        vcpus: 1,
        env: {},
        expiresInMs: 600_000,
        metadata: {},
      },
      soon(),
    );
    return { runtimeId, operations: provider.sandbox(runtimeId) };
  }

  function specOf(script: string, limits: ExecUseLimits): ExecSpec {
    return {
      execId: randomIds.execId(),
      command: script,
      args: [],
      argv: ["/bin/sh", "-c", script],
      env: {},
      stdin: false,
      timeoutMs: 60_000,
      detached: false,
      limits,
    };
  }

  async function run(
    operations: SandboxOperations,
    spec: ExecSpec,
  ): Promise<{ exit: ExecExit | undefined; output: string }> {
    await using view = await operations.execs.start(spec, soon());
    let exit: ExecExit | undefined;
    let output = "";
    for await (const event of view.events) {
      if (event.type === "exit") exit = event.exit;
      else output += event.data.toString();
    }
    return { exit, output };
  }

  /** Of the runtime's own control groups. */
  async function pathsOf(runtimeId: RuntimeId): Promise<string[]> {
    const file = join(home.dataDir, "runtimes", "native", runtimeId, "runtime.json");
    const record: { cgroup: CgroupSpec } = JSON.parse(await readFile(file, "utf8"));
    return record.cgroup.dirs.map(({ path }) => path);
  }

  /** Directories of groups that commands have to themselves. */
  async function groupsOf(runtimeId: RuntimeId): Promise<string[]> {
    return (await pathsOf(runtimeId))
      .map((path) => join(path, "execs"))
      .filter((parent) => existsSync(parent))
      .flatMap((parent) => readdirSync(parent).filter((name) => name.startsWith("ex-")));
  }

  it("each of two commands at once has its own memory, and the kernel's kill is told as the limit", async () => {
    const { runtimeId, operations } = await sandbox();
    const sibling = runScript(operations, "sleep 1; echo sibling");
    const [small, large] = await Promise.all([
      run(operations, specOf(`${eat(48)}; sleep 30`, { memoryMb: 16 })),
      run(operations, specOf(`${eat(48)} && echo ate`, { memoryMb: 128 })),
    ]);
    expect(small.exit).toMatchObject({ reason: "limit", limit: "memory_mb" });
    expect(small.exit?.oomKills).toBeGreaterThan(0);
    expect(small.exit?.durationMs).toBeLessThan(20_000);
    expect(large).toMatchObject({ output: "ate\n", exit: { reason: "exited", exitCode: 0 } });
    expect(large.exit).not.toHaveProperty("oomKills");
    expect((await sibling).output).toBe("sibling\n");
    await expect.poll(() => groupsOf(runtimeId), { timeout: 20_000 }).toEqual([]);
  });

  it("the sandbox's own limit holds over a larger one of a command, and is told as what it is", async () => {
    const { operations } = await sandbox(32);
    const { exit } = await run(operations, specOf(`exec ${eat(64)}`, { memoryMb: 1_024 }));
    expect(exit).toMatchObject({ reason: "oom" });
  });

  it("a command has no more processes than its limit, whatever it tries, and a sibling has its own", async () => {
    const { runtimeId, operations } = await sandbox();
    await operations.files.write("/tmp/bomb", Readable.from([probe]), {
      ...soon(),
      mode: 0o755,
    });
    const spec = specOf("/tmp/bomb fork-bomb 4 0", { pids: 8 });
    const bomb = run(operations, { ...spec, timeoutMs: 3_000 });
    await expect
      .poll(async () => (await operations.stats(soon())).pids ?? 0, { timeout: 15_000 })
      .toBeGreaterThan(8);
    const many = "for i in 1 2 3 4 5 6 7 8 9 10 11 12; do sleep 1 & done; wait; echo all";
    expect((await runScript(operations, many)).output).toBe("all\n");
    // The agent, monitors and eight processes.
    expect((await operations.stats(soon())).pids).toBeLessThan(32);
    expect((await bomb).exit?.reason).toBe("timeout");
    const refused = await run(operations, specOf("(sleep 1 & sleep 1 & sleep 1 &); echo no", { pids: 2 }));
    expect(refused.exit?.reason).toBe("exited");
    expect(refused.output).toContain("fork");
    await expect.poll(() => groupsOf(runtimeId), { timeout: 20_000 }).toEqual([]);
  });

  it("what a killed service left is removed by the next one, a running command keeps its limit", async () => {
    const { runtimeId, operations } = await sandbox();
    const spec = { ...specOf(`sleep 2; ${eat(48)}; sleep 30`, { memoryMb: 16 }), detached: true };
    await operations.execs.startDetached(spec, soon());
    expect(await groupsOf(runtimeId)).toContain(spec.execId);
    await provider[Symbol.asyncDispose]();
    provider = home.open({ pidsLimit: 128 });
    await provider.adopt(runtimeId, soon());
    const { execs } = provider.sandbox(runtimeId);
    await expect
      .poll(async () => (await execs.get(spec.execId, soon())).exit, { timeout: 30_000, interval: 200 })
      .toMatchObject({ reason: "limit", limit: "memory_mb" });
    await expect.poll(() => groupsOf(runtimeId), { timeout: 20_000 }).toEqual([]);
  });

  it("a destroy leaves no group of a running command", async () => {
    const { runtimeId, operations } = await sandbox();
    const spec = { ...specOf("sleep 60", { memoryMb: 16, pids: 4 }), detached: true };
    await operations.execs.startDetached(spec, soon());
    const paths = await pathsOf(runtimeId);
    await provider.destroy(runtimeId, soon());
    for (const path of paths) expect(existsSync(path)).toBe(false);
  });
});
