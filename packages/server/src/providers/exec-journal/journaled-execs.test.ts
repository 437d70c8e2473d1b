import { afterEach, describe, expect, it } from "vitest";
import { randomIds } from "../../platform/random-ids.ts";
import { systemClock } from "../../platform/system-clock.ts";
import { BadRequest, type ExecSpec, NotFound, ResourceLimit, RuntimeGone } from "../../ports/index.ts";
import { JournaledExecs, type ProgramEnd, type ProgramStreams } from "./index.ts";

const soon = () => ({ signal: AbortSignal.timeout(5_000) });

function spec(change: Partial<ExecSpec> = {}): ExecSpec {
  const words = { command: "program", args: [], argv: ["program"], env: {} };
  return {
    execId: randomIds.execId(),
    ...words,
    stdin: false,
    timeoutMs: 60_000,
    detached: true,
    ...change,
  };
}

/** Programs that do what the test says. */
class Programs {
  readonly execs: JournaledExecs;
  readonly started: {
    streams: ProgramStreams;
    end: (end: ProgramEnd) => void;
    calls: string[];
    aborted: boolean;
  }[] = [];
  readonly lines: string[] = [];
  onStart: () => Promise<void> = async () => undefined;

  constructor(inputHoldsBytes = 1_000) {
    this.execs = new JournaledExecs({
      clock: systemClock,
      what: "scripted sandbox",
      inputHoldsBytes,
      onEvent: (line) => this.lines.push(line),
      runner: {
        start: async (_spec, streams) => {
          await this.onStart();
          const ended = Promise.withResolvers<ProgramEnd>();
          const calls: string[] = [];
          const program = { streams, end: ended.resolve, calls, aborted: false };
          this.started.push(program);
          streams.signal.addEventListener("abort", () => {
            program.aborted = true;
            ended.resolve({ exitCode: 137 });
          });
          return {
            pid: 40 + this.started.length,
            ended: ended.promise,
            signal: async (number) => void calls.push(`signal ${number}`),
            resize: async ({ cols, rows }) => void calls.push(`resize ${cols}x${rows}`),
            sweep: async () => void calls.push("sweep"),
          };
        },
      },
    });
  }

  get last() {
    const last = this.started.at(-1);
    if (last === undefined) throw new Error("nothing was started");
    return last;
  }
}

describe("JournaledExecs", () => {
  let open: JournaledExecs | undefined;
  const programs = (inputHoldsBytes?: number) => {
    const made = new Programs(inputHoldsBytes);
    open = made.execs;
    return made;
  };
  afterEach(() => open?.end());

  it("a command that could not be started is nowhere, and its id is free again", async () => {
    const failing = programs();
    const wanted = spec();
    failing.onStart = async () => {
      throw new BadRequest("not here");
    };
    await expect(failing.execs.startDetached(wanted, soon())).rejects.toThrow(BadRequest);
    await expect(failing.execs.get(wanted.execId)).rejects.toThrow(NotFound);
    failing.onStart = async () => undefined;
    expect(await failing.execs.startDetached(wanted, soon())).toEqual({ pid: 41 });
  });

  it("signals and sizes reach the program; sizes only where there is a terminal", async () => {
    const scripted = programs();
    const plain = spec();
    const terminal = spec({ tty: { cols: 80, rows: 24 } });
    await scripted.execs.startDetached(plain, soon());
    await scripted.execs.signal(plain.execId, 10, soon());
    await scripted.execs.resize(plain.execId, { cols: 1, rows: 2 }, soon());
    expect(scripted.last.calls).toEqual(["signal 10"]);
    await scripted.execs.startDetached(terminal, soon());
    await scripted.execs.resize(terminal.execId, { cols: 1, rows: 2 }, soon());
    expect(scripted.last.calls).toEqual(["resize 1x2"]);
    expect(await scripted.execs.get(terminal.execId)).toMatchObject({ tty: true, pid: 42 });
  });

  it("of a command that has ended, only the beginning of its command line is kept", async () => {
    const scripted = programs();
    const [long, short] = [spec({ args: ["a", "b".repeat(40_000), "c"] }), spec({ args: ["a", "b"] })];
    for (const each of [long, short]) {
      await scripted.execs.startDetached(each, soon());
      expect((await scripted.execs.get(each.execId)).args).toEqual(each.args);
      scripted.last.end({ exitCode: 0 });
      await Promise.resolve();
    }
    const { command, args } = await scripted.execs.get(long.execId);
    expect([command, args.length, args[0]]).toEqual(["program", 2, "a"]);
    expect(args[1]).toMatch(/^b{32000,32768}…$/);
    expect((await scripted.execs.get(short.execId)).args).toEqual(["a", "b"]);
  });

  it("an end by a signal is told as one, and a lost program as lost", async () => {
    const scripted = programs();
    const [signaled, lost] = [spec(), spec()];
    await scripted.execs.startDetached(signaled, soon());
    scripted.last.end({ exitCode: 143, signal: "SIGTERM" });
    await scripted.execs.startDetached(lost, soon());
    scripted.last.end({ exitCode: 0, lost: true });
    await Promise.resolve();
    expect((await scripted.execs.get(signaled.execId)).exit).toMatchObject({
      reason: "signaled",
      signal: "SIGTERM",
      exitCode: 143,
    });
    expect((await scripted.execs.get(lost.execId)).exit).toMatchObject({ reason: "lost" });
    expect(scripted.lines).toContain(`${signaled.execId} signaled, exit code 143`);
  });

  it("kill() of a command that has ended sweeps what it left, and one that runs is not swept", async () => {
    const scripted = programs();
    const wanted = spec();
    await scripted.execs.startDetached(wanted, soon());
    await scripted.execs.kill(wanted.execId, { ...soon(), reason: "cancelled" });
    expect(scripted.last).toMatchObject({ aborted: true, calls: [] });
    const info = await scripted.execs.kill(wanted.execId, { ...soon(), reason: "cancelled" });
    expect(info.exit).toMatchObject({ reason: "cancelled" });
    expect(scripted.last.calls).toEqual(["sweep"]);
  });

  it("letGo() cuts views and refuses calls, and stops no program, not at its deadline either", async () => {
    const scripted = programs();
    const wanted = spec({ timeoutMs: 60, detached: false });
    const view = await scripted.execs.start(wanted, soon());
    scripted.execs.letGo();
    const events = [];
    for await (const event of view.events) events.push(event);
    expect(events).toEqual([]);
    await expect(scripted.execs.list()).rejects.toThrow(RuntimeGone);
    await new Promise((resolve) => setTimeout(resolve, 150));
    expect(scripted.last.aborted).toBe(false);
  });

  it("input beyond what may wait holds its writer back until the program takes some, and never beyond 16 MiB", async () => {
    const scripted = programs(10);
    const wanted = spec({ stdin: true });
    await scripted.execs.startDetached(wanted, soon());
    await scripted.execs.writeStdin(wanted.execId, Buffer.alloc(10), { ...soon(), close: false });
    let written = false;
    const write = scripted.execs
      .writeStdin(wanted.execId, Buffer.from("more"), { ...soon(), close: false })
      .then(() => {
        written = true;
      });
    await new Promise((resolve) => setTimeout(resolve, 20));
    expect(written).toBe(false);
    const { input } = scripted.last.streams;
    expect((await input.next(6))?.length).toBe(6);
    await write;
    expect((await input.next(100))?.toString().endsWith("more")).toBe(true);
    const large = scripted.execs.writeStdin(wanted.execId, Buffer.alloc(17 * 1_048_576), {
      ...soon(),
      close: false,
    });
    await expect(large).rejects.toThrow(ResourceLimit);
  });
});

it("input that is refused does not count as taken, and does not close what is open", async () => {
  const programs = new Programs(64 * 1_048_576);
  const wanted = spec({ stdin: true });
  await programs.execs.startDetached(wanted, soon());
  const write = (bytes: number, more = {}) =>
    programs.execs.writeStdin(wanted.execId, Buffer.alloc(bytes), {
      ...soon(),
      close: false,
      input: "in",
      ...more,
    });
  await write(10_000_000);
  await expect(write(10_000_000, { offset: 10_000_000, close: true })).rejects.toThrow(ResourceLimit);
  expect(await programs.execs.inputTaken(wanted.execId, "in")).toBe(10_000_000);
  await using view = await programs.execs.attach(wanted.execId, {
    ...soon(),
    from: 0,
    follow: true,
    lossless: true,
    input: "in",
  });
  await expect(view.writeStdin(Buffer.alloc(10_000_000))).rejects.toThrow(ResourceLimit);
  expect(await programs.execs.inputTaken(wanted.execId, "in")).toBe(10_000_000);
  await write(1_000, { offset: 10_000_000, close: true });
  expect(await programs.execs.inputTaken(wanted.execId, "in")).toBe(10_001_000);
  await programs.execs.end();
});
