import { expect, it } from "vitest";
import { Conflict, type SandboxOperations } from "../../index.ts";
import { type ContractHarness, eventually, finish, readUntil, run, shell, soon } from "./harness.ts";

/** Leaves processes that a plain kill of the first one would miss: a session of its own, twice forked, deaf to TERM. */
const hardToKill = (marker: string) =>
  `trap '' TERM; setsid sh -c 'trap "" TERM; (exec sleep 61${marker}) & wait' >/dev/null 2>&1 & ` +
  `(setsid sleep 62${marker} >/dev/null 2>&1 &); echo up; sleep 63${marker}`;

/** Which of the marked processes still run inside. */
async function survivors(operations: SandboxOperations, marker: string): Promise<string> {
  const script = `for d in /proc/[0-9]*; do tr '\\0' ' ' < $d/cmdline 2>/dev/null | grep -E "^sleep 6[123]${marker}" ; done; true`;
  return (await run(operations, script)).stdout;
}

export function execControlContract(harness: ContractHarness): void {
  it("a timeout kills the whole tree: other sessions, double forks, those deaf to SIGTERM", async () => {
    const operations = await harness.shared();
    const { exit } = await run(operations, shell(hardToKill("01"), { timeoutMs: 400 }));
    expect(exit).toMatchObject({ exitCode: 137, reason: "timeout" });
    expect(await survivors(operations, "01")).toBe("");
  });

  it("kill() ends the whole tree and resolves when nothing of it is left", async () => {
    const operations = await harness.shared();
    const spec = shell(hardToKill("02"));
    await using view = await operations.execs.start(spec, soon());
    const { rest } = await readUntil(view, "up");
    const info = await operations.execs.kill(spec.execId, { ...soon(), reason: "cancelled" });
    expect(info.exit).toMatchObject({ exitCode: 137, reason: "cancelled" });
    expect(await survivors(operations, "02")).toBe("");
    const last = await rest.next();
    expect(last.done ? undefined : last.value).toMatchObject({ type: "exit", exit: { reason: "cancelled" } });
  });

  it("kill() of an ended command sweeps what it left behind and keeps its record", async () => {
    const operations = await harness.shared();
    const spec = shell("setsid sleep 6103 >/dev/null 2>&1 & echo left; exit 5");
    await run(operations, spec);
    const info = await operations.execs.kill(spec.execId, { ...soon(), reason: "cancelled" });
    expect(info.exit).toMatchObject({ exitCode: 5, reason: "exited" });
    expect(await survivors(operations, "03")).toBe("");
  });

  it("limits of memory and processes hold one command, or are refused naming field and capability", async () => {
    const operations = await harness.shared();
    for (const limits of [{ memoryMb: 16 }, { pids: 2 }]) {
      // More memory than the one allows, more processes than the other.
      const spec = shell("dd bs=48M count=1 if=/dev/zero of=/dev/null; (sleep 0 & sleep 0 & wait)", {
        limits,
      });
      if (!harness.provider.capabilities.has("exec_limits")) {
        await expect(operations.execs.start(spec, soon())).rejects.toThrow(/^limits\..*exec_limits/);
        continue;
      }
      const { exit, stderr } = await run(operations, spec);
      if (limits.pids === undefined) expect(exit).toMatchObject({ reason: "limit", limit: "memory_mb" });
      else expect([exit.reason, stderr]).toEqual(["exited", expect.stringContaining("fork")]);
    }
  });

  it("a timeout ends a shell that computes forever", async () => {
    const { exit } = await run(await harness.shared(), shell("while :; do :; done", { timeoutMs: 300 }));
    expect(exit.reason).toBe("timeout");
    expect(exit.durationMs).toBeGreaterThanOrEqual(250);
  });

  it("the end of a command is told although something it started goes on", async () => {
    const operations = await harness.shared();
    const spec = shell("sleep 600 & echo started");
    const { stdout, exit } = await run(operations, spec);
    expect({ stdout, code: exit.exitCode }).toEqual({ stdout: "started\n", code: 0 });
    await operations.execs.kill(spec.execId, { ...soon(), reason: "cancelled" });
  });

  it("signal() reaches the process group; after the end it is a Conflict", async () => {
    const operations = await harness.shared();
    const spec = shell("trap 'echo caught; exit 9' USR1; echo up; while :; do sleep 0.05; done");
    await using view = await operations.execs.start(spec, soon());
    const { rest } = await readUntil(view, "up");
    await operations.execs.signal(spec.execId, 10, soon());
    let seen = "";
    for (let next = await rest.next(); !next.done; next = await rest.next()) {
      if (next.value.type === "output") seen += next.value.data.toString();
      else expect(next.value.exit.exitCode).toBe(9);
    }
    expect(seen).toContain("caught");
    await expect(operations.execs.signal(spec.execId, 10, soon())).rejects.toThrow(Conflict);
  });

  it("input that is to come whole is told until it has ended, and a kill for the rest of it tells what is missing", async () => {
    const { execs } = await harness.shared();
    const given = { detached: true, stdin: true, inputBytes: 4 };
    const [whole, lost] = [shell("cat; sleep 600", given), shell("cat", given)];
    for (const spec of [whole, lost]) await execs.startDetached(spec, soon());
    const data = Buffer.from("text");
    await execs.writeStdin(whole.execId, data, { close: false, input: whole.execId, ...soon() });
    expect(await execs.get(whole.execId, soon())).toHaveProperty("inputBytes", 4);
    await execs.writeStdin(whole.execId, Buffer.alloc(0), { close: true, ...soon() });
    expect(await execs.get(whole.execId, soon())).not.toHaveProperty("inputBytes");
    await execs.kill(whole.execId, { ...soon(), reason: "cancelled" });
    const listed = (await execs.list(soon())).find(({ execId }) => execId === lost.execId);
    expect(listed).toHaveProperty("inputBytes", 4);
    const { exit } = await execs.kill(lost.execId, { ...soon(), reason: "cancelled", inputLostBytes: 4 });
    expect(exit).toMatchObject({ reason: "cancelled", inputLostBytes: 4 });
  });

  it("setGrace() kills after its time unless somebody attaches", async () => {
    const { execs } = await harness.shared();
    const left = shell("sleep 600", { detached: true });
    await execs.startDetached(left, soon());
    await execs.setGrace(left.execId, 50, soon());
    await eventually(async () => {
      expect((await execs.get(left.execId, soon())).exit).toMatchObject({ reason: "cancelled" });
    });
    const kept = shell("sleep 0.6; echo kept", { detached: true });
    await execs.startDetached(kept, soon());
    await execs.setGrace(kept.execId, 300, soon());
    await using view = await execs.attach(kept.execId, { ...soon(), from: 0, follow: true, lossless: true });
    expect((await finish(view)).stdout).toBe("kept\n");
    await execs.setGrace(kept.execId, 10, soon());
  });

  it("setGrace() ends no command that is followed", async () => {
    const { execs } = await harness.shared();
    const spec = shell("echo up; read x; echo $x", { stdin: true });
    await using view = await execs.start(spec, soon());
    const { rest, seen } = await readUntil(view, "up\n");
    expect(seen).toBe("up\n");
    await execs.setGrace(spec.execId, 20, soon());
    await new Promise((resolve) => setTimeout(resolve, 300));
    await execs.writeStdin(spec.execId, Buffer.from("still here\n"), { ...soon(), close: true });
    let text = "";
    for (let next = await rest.next(); !next.done; next = await rest.next())
      text += next.value.type === "exit" ? next.value.exit.reason : next.value.data.toString();
    expect(text).toBe("still here\nexited");
  });

  it("setGrace() begins anew while a command is followed, and ends it once nobody follows", async () => {
    const { execs } = await harness.shared();
    const followed = shell("sleep 0.5; echo still here");
    await using view = await execs.start(followed, soon());
    await execs.setGrace(followed.execId, 20, soon());
    expect(await finish(view)).toMatchObject({ stdout: "still here\n", exit: { reason: "exited" } });
    const left = shell("sleep 600");
    const reader = await execs.start(left, soon());
    await execs.setGrace(left.execId, 20, soon());
    await reader[Symbol.asyncDispose]();
    await eventually(async () => {
      expect((await execs.get(left.execId, soon())).exit).toMatchObject({ reason: "cancelled" });
    });
  });

  it("attach() replays from an offset and then goes on live", async () => {
    const { execs } = await harness.shared();
    const spec = shell("echo 0123456789; read x; echo live", { detached: true, stdin: true });
    await execs.startDetached(spec, soon());
    await eventually(async () => expect((await execs.get(spec.execId, soon())).outputBytes).toBe(11));
    await using view = await execs.attach(spec.execId, { ...soon(), from: 4, follow: true, lossless: true });
    expect(view.info.command).toBe(spec.command);
    const { rest, seen } = await readUntil(view, "\n");
    expect(seen).toBe("456789\n");
    await execs.writeStdin(spec.execId, Buffer.from("go\n"), { ...soon(), close: true });
    const next = await rest.next();
    expect(next.done || next.value.type === "exit" ? "" : next.value.data.toString()).toBe("live\n");
    expect((await rest.next()).value).toMatchObject({ type: "exit" });
    await using ended = await execs.attach(spec.execId, {
      ...soon(),
      from: 0,
      follow: false,
      lossless: true,
    });
    expect((await finish(ended)).stdout).toBe("0123456789\nlive\n");
    await using beyond = await execs.attach(spec.execId, {
      ...soon(),
      from: 1_000_000,
      follow: true,
      lossless: true,
    });
    expect((await finish(beyond)).stdout).toBe("");
  });

  it("attach() without follow gives what is kept of a running command and ends", async () => {
    const { execs } = await harness.shared();
    const spec = shell("echo now; sleep 600", { detached: true });
    await execs.startDetached(spec, soon());
    await eventually(async () => expect((await execs.get(spec.execId, soon())).outputBytes).toBe(4));
    await using view = await execs.attach(spec.execId, { ...soon(), from: 0, follow: false, lossless: true });
    const events = [];
    for await (const event of view.events) events.push(event.type);
    expect(events).toEqual(["output"]);
    await execs.kill(spec.execId, { ...soon(), reason: "cancelled" });
  });

  it("the memory of a command nobody reads is bounded: the oldest output goes first", async () => {
    const { execs } = await harness.shared();
    const spec = shell("yes | head -c 8000000", { detached: true });
    await execs.startDetached(spec, soon());
    const info = await eventually(async () => {
      const found = await execs.get(spec.execId, soon());
      expect(found.exit).toBeDefined();
      return found;
    });
    expect(info.outputBytes).toBe(8_000_000);
    expect(info.firstOffset).toBeGreaterThan(0);
    await using view = await execs.attach(spec.execId, { ...soon(), from: 0, follow: true, lossless: true });
    let first = -1;
    let bytes = 0;
    for await (const event of view.events) {
      if (event.type !== "output") continue;
      if (first < 0) first = event.offset;
      bytes += event.data.length;
    }
    expect(first + bytes).toBe(8_000_000);
    expect(bytes).toBeLessThanOrEqual(2 * 1024 * 1024);
  });

  it("a reader that stops reading stops a lossless command, and loses nothing", async () => {
    const { execs } = await harness.shared();
    const spec = shell("yes | head -c 30000000");
    await using view = await execs.start(spec, soon());
    const events = view.events[Symbol.asyncIterator]();
    await events.next();
    // The command has come to rest when what it has written no longer grows between two looks.
    let before = -1;
    const held = await eventually(async () => {
      const { outputBytes, exit } = await execs.get(spec.execId, soon());
      const settled = outputBytes === before;
      before = outputBytes;
      expect(exit).toBeUndefined();
      expect(settled).toBe(true);
      return outputBytes;
    });
    expect(held).toBeLessThan(20_000_000);
    let last = 0;
    for (let next = await events.next(); !next.done; next = await events.next()) {
      if (next.value.type === "output") last = next.value.offset + next.value.data.length;
    }
    expect(last).toBe(30_000_000);
  });
}
