import { expect, it } from "vitest";
import { BadRequest, Conflict, type ExecEvent, NotFound } from "../../index.ts";
import { argv, type ContractHarness, finish, freshExecId, readUntil, run, shell, soon } from "./harness.ts";

export function execContract(harness: ContractHarness): void {
  it("a command's streams are kept apart and its exit code is told", async () => {
    const { exit, stdout, stderr } = await run(await harness.shared(), "echo out; echo err >&2; exit 7");
    expect({ stdout, stderr }).toEqual({ stdout: "out\n", stderr: "err\n" });
    expect(exit).toMatchObject({ exitCode: 7, reason: "exited", outputBytes: 8 });
    expect(exit.durationMs).toBeGreaterThanOrEqual(0);
    expect(exit.endedAt.getTime()).toBeGreaterThanOrEqual(exit.startedAt.getTime());
  });

  it("output comes in order, with offsets that count both streams", async () => {
    const operations = await harness.shared();
    await using view = await operations.execs.start(
      shell("i=0; while [ $i -lt 200 ]; do echo $i; echo e$i >&2; i=$((i+1)); done"),
      soon(),
    );
    let offset = 0;
    const lines: Record<string, string> = { stdout: "", stderr: "" };
    for await (const event of view.events) {
      if (event.type === "exit") {
        expect(event.exit.outputBytes).toBe(offset);
        continue;
      }
      expect(event.offset).toBe(offset);
      offset += event.data.length;
      lines[event.stream] += event.data.toString();
    }
    expect(lines.stdout).toBe(Array.from({ length: 200 }, (_, i) => `${i}\n`).join(""));
    expect(lines.stderr).toBe(Array.from({ length: 200 }, (_, i) => `e${i}\n`).join(""));
  });

  it("an argument list is run without a shell", async () => {
    const { stdout } = await run(await harness.shared(), argv("echo", "$HOME", "a b", "*"));
    expect(stdout).toBe("$HOME a b *\n");
  });

  it("the environment of a command is the spec's own over the sandbox's", async () => {
    const { stdout } = await run(
      await harness.shared(),
      shell('echo "$GREETING"; test -n "$PATH" && echo path', { env: { GREETING: "hej då\n!" } }),
    );
    expect(stdout).toBe("hej då\n!\npath\n");
  });

  it("a command runs in /workspace, or where it asks to", async () => {
    const operations = await harness.shared();
    expect((await run(operations, "pwd")).stdout).toBe("/workspace\n");
    expect((await run(operations, shell("pwd", { workdir: "/tmp" }))).stdout).toBe("/tmp\n");
    expect((await run(operations, "echo x > made-here && cat /workspace/made-here")).stdout).toBe("x\n");
  });

  it("a missing working directory is a BadRequest", async () => {
    const operations = await harness.shared();
    const start = operations.execs.start(shell("true", { workdir: "/no/such/folder" }), soon());
    await expect(start).rejects.toThrow(BadRequest);
  });

  it("a command runs as the user it asks for; an unknown user is a BadRequest", async () => {
    const operations = await harness.shared();
    expect((await run(operations, shell("id -u; id -g", { user: "1000:1001" }))).stdout).toBe("1000\n1001\n");
    const start = operations.execs.start(shell("true", { user: "nobody-of-that-name" }), soon());
    await expect(start).rejects.toThrow(BadRequest);
  });

  it("a program that is missing ends with 127", async () => {
    const missing = await run(await harness.shared(), argv("no-such-program"));
    expect(missing.exit.exitCode).toBe(127);
    expect(missing.exit.startError).toContain("no-such-program");
  });

  it("a program that cannot be executed ends with 126", async () => {
    const folder = await run(await harness.shared(), argv("/workspace"));
    expect(folder.exit.exitCode).toBe(126);
    expect(folder.exit.startError).toBeDefined();
  });

  it("a command ended by a signal has 128 + n and the signal's name", async () => {
    const { exit } = await run(await harness.shared(), "kill -TERM $$");
    expect(exit).toMatchObject({ exitCode: 143, reason: "signaled", signal: "SIGTERM" });
  });

  it("standard input is empty unless it is asked for", async () => {
    expect((await run(await harness.shared(), "cat; echo end")).stdout).toBe("end\n");
  });

  it("standard input is written and closed", async () => {
    const { stdout } = await run(await harness.shared(), shell("cat; echo end", { stdin: true }), "typed\n");
    expect(stdout).toBe("typed\nend\n");
  });

  it("four megabytes go through standard input and come back", async () => {
    const operations = await harness.shared();
    await using view = await operations.execs.start(shell("cat | wc -c", { stdin: true }), soon());
    const part = Buffer.alloc(256 * 1024, "x");
    for (let index = 0; index < 16; index += 1) await view.writeStdin(part);
    await view.closeStdin();
    expect((await finish(view)).stdout.trim()).toBe(String(4 * 1024 * 1024));
  });

  it("standard input can be written to a detached command, and is a Conflict after its end", async () => {
    const { execs } = await harness.shared();
    const spec = shell("read a; echo got $a; cat", { detached: true, stdin: true });
    await execs.startDetached(spec, soon());
    await execs.writeStdin(spec.execId, Buffer.from("one\n"), { ...soon(), close: false });
    await execs.writeStdin(spec.execId, Buffer.from("two\n"), { ...soon(), close: true });
    await using view = await execs.attach(spec.execId, { ...soon(), from: 0, follow: true, lossless: true });
    expect((await finish(view)).stdout).toBe("got one\ntwo\n");
    const late = execs.writeStdin(spec.execId, Buffer.from("x"), { ...soon(), close: false });
    await expect(late).rejects.toThrow(Conflict);
  });

  it("a terminal has the size it was given and takes a new one", async () => {
    const operations = await harness.shared();
    const spec = shell("stty size; read go; stty size; test -t 0 && test -t 1 && echo terminal", {
      stdin: true,
      tty: { cols: 91, rows: 17 },
    });
    await using view = await operations.execs.start(spec, soon());
    const { rest } = await readUntil(view, "17 91");
    await operations.execs.resize(spec.execId, { cols: 120, rows: 40 }, soon());
    await view.writeStdin(Buffer.from("go\n"));
    let seen = "";
    for (let next = await rest.next(); !next.done; next = await rest.next()) {
      if (next.value.type === "output") {
        expect(next.value.stream).toBe("stdout");
        seen += next.value.data.toString();
      }
    }
    expect(seen).toContain("40 120");
    expect(seen).toContain("terminal");
  });

  it("an end-of-file typed at a terminal ends the shell", async () => {
    const operations = await harness.shared();
    const spec = shell("cat; echo done", { stdin: true, tty: { cols: 80, rows: 24 } });
    await using view = await operations.execs.start(spec, soon());
    await view.writeStdin(Buffer.from("\u0004"));
    expect((await finish(view)).stdout).toContain("done");
  });

  it("an interrupt typed at a terminal ends what runs there", async () => {
    const operations = await harness.shared();
    const spec = shell("echo begun; exec sleep 60", { stdin: true, tty: { cols: 80, rows: 24 } });
    await using view = await operations.execs.start(spec, soon());
    await readUntil(view, "begun");
    await view.writeStdin(Buffer.from("\u0003"));
    expect((await finish(view)).exit.exitCode).toBe(130);
  });

  it("resize without a terminal does nothing", async () => {
    const { execs } = await harness.shared();
    const spec = shell("read x", { stdin: true, detached: true });
    await execs.startDetached(spec, soon());
    await execs.resize(spec.execId, { cols: 10, rows: 10 }, soon());
    await execs.kill(spec.execId, { ...soon(), reason: "cancelled" });
  });

  it("an id that is taken is a Conflict, one that is unknown NotFound", async () => {
    const { execs } = await harness.shared();
    const spec = shell("true");
    await run(await harness.shared(), spec);
    await expect(execs.start(spec, soon())).rejects.toThrow(Conflict);
    await expect(execs.get(freshExecId(), soon())).rejects.toThrow(NotFound);
    const attach = execs.attach(freshExecId(), { ...soon(), from: 0, follow: true, lossless: true });
    await expect(attach).rejects.toThrow(NotFound);
  });

  it("get() and list() describe commands, running and ended", async () => {
    const operations = await harness.shared();
    const spec = { ...argv("sh", "-c", "echo hi; exit 3"), tag: "mine" };
    await run(operations, spec);
    const info = await operations.execs.get(spec.execId, soon());
    expect(info).toMatchObject({
      execId: spec.execId,
      command: "sh",
      args: ["-c", "echo hi; exit 3"],
      tty: false,
      tag: "mine",
      detached: false,
      outputBytes: 3,
      firstOffset: 0,
      exit: { exitCode: 3, reason: "exited" },
    });
    const listed = await operations.execs.list(soon());
    expect(listed.map((entry) => entry.execId)).toContain(spec.execId);
  });

  it("a view whose holder leaves does not end the command", async () => {
    const { execs } = await harness.shared();
    const spec = shell("echo up; read line; echo $line", { stdin: true });
    const view = await execs.start(spec, soon());
    await readUntil(view, "up");
    await view[Symbol.asyncDispose]();
    expect((await execs.get(spec.execId, soon())).exit).toBeUndefined();
    await execs.writeStdin(spec.execId, Buffer.from("on\n"), { ...soon(), close: false });
    await using again = await execs.attach(spec.execId, { ...soon(), from: 3, follow: true, lossless: true });
    expect((await finish(again)).stdout).toBe("on\n");
  });

  it("a hundred commands at once all answer", async () => {
    const operations = await harness.shared();
    const answers = await Promise.all(
      Array.from({ length: 100 }, async (_, index) => (await run(operations, `echo ${index}`)).stdout),
    );
    expect(answers).toEqual(Array.from({ length: 100 }, (_, index) => `${index}\n`));
  });

  it("exits() tells every command that ends, whoever started it", async () => {
    const operations = await harness.shared();
    const stop = new AbortController();
    const first = argv("true");
    const second = shell("exit 4", { detached: true });
    const exits = operations.execs.exits({ signal: stop.signal })[Symbol.asyncIterator]();
    await run(operations, first);
    await operations.execs.startDetached(second, soon());
    const codes = new Map<string, number>();
    while (!codes.has(second.execId)) {
      const next = await exits.next();
      if (next.done) throw new Error("exits() ended");
      codes.set(next.value.execId, next.value.exit.exitCode);
    }
    expect(codes.get(second.execId)).toBe(4);
    stop.abort();
    expect((await exits.next()).done).toBe(true);
  });

  it("start() with an aborted signal rejects with its reason", async () => {
    const operations = await harness.shared();
    const reason = new Error("too late");
    const start = operations.execs.start(shell("true"), { signal: AbortSignal.abort(reason) });
    await expect(start).rejects.toBe(reason);
  });

  it("bytes that are no text pass unchanged", async () => {
    const operations = await harness.shared();
    await using view = await operations.execs.start(shell("printf '\\377\\000\\376'"), soon());
    const parts: Buffer[] = [];
    for await (const event of view.events as AsyncIterable<ExecEvent>) {
      if (event.type === "output") parts.push(event.data);
    }
    expect(Buffer.concat(parts)).toEqual(Buffer.from([0xff, 0, 0xfe]));
  });
}
