import { expect, it } from "vitest";
import { randomIds } from "../../../platform/random-ids.ts";
import { RuntimeGone, type RuntimeId } from "../../index.ts";
import { ConnectionWatch } from "./connection-watch.ts";
import { type ContractHarness, eventually, finish, readUntil, run, shell, soon } from "./harness.ts";

export function lifecycleContract(harness: ContractHarness): void {
  it("env, user and workdir of the spec apply to every command", async () => {
    const { operations } = await harness.spawn({
      env: { COLOUR: "green" },
      user: "1234:1234",
      workdir: "/srv/app",
    });
    expect((await run(operations, 'echo "$COLOUR $(id -u) $(pwd)"')).stdout).toBe("green 1234 /srv/app\n");
    expect((await run(operations, "touch own && echo made")).stdout).toBe("made\n");
  });

  it("adopt() after a restart finds a command still running and its output complete", async () => {
    const made = { memoryMb: 256, vcpus: 1, ownerId: "ada", name: "seven", metadata: { job: "7" } };
    const { runtimeId, image, sandboxId, operations } = await harness.spawn(made);
    const spec = shell("echo before; read line; echo after $line", { detached: true, stdin: true });
    await operations.execs.startDetached(spec, soon());
    const provider = await harness.restart();
    // What is written down with a runtime is enough to know its sandbox again without the store.
    const note = expect.objectContaining({ ...made, imageResolved: image });
    const listed = { runtimeId, sandboxId, state: "running", note };
    expect(await provider.inventory(soon())).toContainEqual(expect.objectContaining(listed));
    await provider.adopt(runtimeId, soon());
    await provider.adopt(runtimeId, soon());
    const { execs } = provider.sandbox(runtimeId);
    await execs.writeStdin(spec.execId, Buffer.from("restart\n"), { ...soon(), close: false });
    await using view = await execs.attach(spec.execId, { ...soon(), from: 0, follow: true, lossless: true });
    const { stdout, exit } = await finish(view);
    expect(stdout).toBe("before\nafter restart\n");
    expect(exit).toMatchObject({ exitCode: 0, reason: "exited" });
  });

  it("a connection that breaks ends no sandbox: after adopt() commands run, and one that ran goes on", async () => {
    using connections = new ConnectionWatch();
    const { runtimeId, sandboxId, operations } = await harness.spawn();
    const spec = shell("sleep 1; echo survived", { detached: true });
    await operations.execs.startDetached(spec, soon());
    connections.breakAll();
    // The first question may meet the broken connection itself.
    await eventually(() => harness.provider.adopt(runtimeId, soon()));
    const current = () => harness.provider.sandbox(runtimeId);
    await eventually(async () => expect((await run(current(), "echo again")).stdout).toBe("again\n"));
    await current().setExpiry(500_000, soon());
    await eventually(async () => {
      expect((await current().execs.get(spec.execId, soon())).exit).toMatchObject({ exitCode: 0 });
    });
    expect(await harness.provider.inventory(soon())).toContainEqual(
      expect.objectContaining({ runtimeId, sandboxId, state: "running" }),
    );
  });

  it("adopt() of a runtime never seen throws RuntimeGone", async () => {
    const unknown: RuntimeId = randomIds.runtimeId();
    await expect(harness.provider.adopt(unknown, soon())).rejects.toThrow(RuntimeGone);
    expect(() => harness.provider.sandbox(unknown)).toThrow(RuntimeGone);
  });

  it("a sandbox whose expiry passes ends itself, and onExit() tells", async () => {
    const { runtimeId, operations } = await harness.spawn();
    const ended = Promise.withResolvers<RuntimeId>();
    const stop = harness.provider.onExit((id) => (id === runtimeId ? ended.resolve(id) : undefined));
    await using view = await operations.execs.start(shell("echo up; sleep 600"), soon());
    const { rest } = await readUntil(view, "up");
    await operations.setExpiry(50, soon());
    expect(await ended.promise).toBe(runtimeId);
    expect((await rest.next()).done).toBe(true);
    stop();
    expect(() => harness.provider.sandbox(runtimeId)).toThrow(RuntimeGone);
    await eventually(async () => {
      const entry = (await harness.provider.inventory(soon())).find((found) => found.runtimeId === runtimeId);
      expect(entry?.state ?? "dead").toBe("dead");
    });
  });

  it("an expiry that was moved does not end the sandbox", async () => {
    const { operations } = await harness.spawn();
    await operations.setExpiry(300, soon());
    await operations.setExpiry(null, soon());
    expect((await run(operations, "sleep 0.5; echo alive")).stdout).toBe("alive\n");
  });

  it("destroy() cuts the output of running commands, without an exit, and is no onExit()", async () => {
    const { runtimeId, operations } = await harness.spawn();
    const told: RuntimeId[] = [];
    const stop = harness.provider.onExit((id) => told.push(id));
    const view = await operations.execs.start(shell("echo up; sleep 600"), soon());
    const { rest } = await readUntil(view, "up");
    await harness.provider.destroy(runtimeId, soon());
    expect((await rest.next()).done).toBe(true);
    stop();
    expect(told).not.toContain(runtimeId);
  });

  it("logs() tells what became of the sandbox, at most as many lines as asked for, newest last", async () => {
    const { runtimeId, operations } = await harness.spawn();
    const logs = (lines: number) => harness.provider.logs(runtimeId, { ...soon(), lines });
    await finish(await operations.execs.start(shell("sleep 60", { timeoutMs: 50 }), soon()));
    // A console that is a machine's is some way off.
    await eventually(async () => expect((await logs(100)).at(-1)).toContain("timeout"));
    const all = await logs(100);
    expect(all.length).toBeGreaterThan(1);
    expect(await logs(1)).toEqual([all.at(-1)]);
  });

  it("stats() counts processes, memory and processor time", async () => {
    const { operations } = await harness.spawn();
    await run(operations, "i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done");
    const stats = await operations.stats(soon());
    expect(stats.memoryBytes).toBeGreaterThan(0);
    expect(stats.cpuUsageMs).toBeGreaterThan(0);
    expect(stats.pids).toBeGreaterThan(0);
    // Of the disk it tells what the sandbox has written, or nothing: never the machine's.
    expect(stats.diskBytes ?? 0).toBeLessThan(64 * 2 ** 20);
  });
}
