import { describe, expect, test } from "vitest";
import { Unavailable } from "../../ports/errors.ts";
import type { ExecEvent } from "../../ports/sandbox-operations.ts";
import { type AttachedView, LastingView } from "./lasting-view.ts";
import { exitOf, settled } from "./testing/fake-sandbox.ts";

const output = (text: string, offset: number): ExecEvent => ({
  type: "output",
  stream: "stdout",
  data: Buffer.from(text),
  offset,
});

const exit: Extract<ExecEvent, { type: "exit" }> = { type: "exit", exit: exitOf({}) };

/** Tells its events and then breaks, once it may. */
function viewOf(events: ExecEvent[], breaks: Promise<void> = Promise.resolve()) {
  const taken: string[] = [];
  const view: AttachedView & { taken: string[]; closed: boolean } = {
    execId: "ex-1" as AttachedView["execId"],
    pid: 7,
    taken,
    closed: false,
    info: events.includes(exit) ? { exit: exit.exit } : {},
    events: (async function* () {
      yield* events;
      await breaks;
    })(),
    writeStdin: async (data) => void taken.push(Buffer.from(data).toString()),
    closeStdin: async () => void taken.push("end"),
    async [Symbol.asyncDispose]() {
      view.closed = true;
    },
  };
  return view;
}

describe("LastingView", () => {
  test("goes on where the output broke off", async () => {
    const asked: number[] = [];
    const first = viewOf([output("abc", 10)]);
    const lasting = new LastingView({
      view: first,
      from: 10,
      attach: async (from) => {
        asked.push(from);
        return viewOf([output("d", from), exit]);
      },
      sandboxRuns: () => true,
    });
    expect(await Array.fromAsync(lasting.events())).toEqual([output("abc", 10), output("d", 13), exit]);
    expect(asked).toEqual([13]);
    expect(first.closed).toBe(true);
  });

  test("tells what is missing: at the beginning, where it was replaced, inside and at the end", async () => {
    const end: ExecEvent = { type: "exit", exit: exitOf({ outputBytes: 30 }) };
    const lasting = new LastingView({
      view: viewOf([output("abc", 10)]),
      from: 4,
      attach: async () => viewOf([output("d", 15), output("e", 16), output("f", 20), end]),
      sandboxRuns: () => true,
    });
    expect(await Array.fromAsync(lasting.events())).toEqual([
      { ...output("abc", 10), lostBytes: 6 },
      { ...output("d", 15), lostBytes: 2 },
      output("e", 16),
      { ...output("f", 20), lostBytes: 3 },
      { ...end, lostBytes: 9 },
    ]);
  });

  test("a view that does not follow and ends early is an error", async () => {
    const attach = () => Promise.reject(new Unavailable("never asked"));
    for (const [until, fails] of [
      [3, false],
      [4, true],
    ] as const) {
      const view = viewOf([output("abc", 0)]);
      const lasting = new LastingView({ view, from: 0, until, attach, sandboxRuns: () => false });
      const told = Array.fromAsync(lasting.events());
      if (fails) await expect(told).rejects.toThrow("broke off at 3");
      else expect(await told).toEqual([output("abc", 0)]);
    }
  });

  test.each(["input", "its end"])(
    "ends when it breaks after %s was given and nobody counts what arrived; not when the command has ended",
    async (what) => {
      for (const ended of [false, true]) {
        const broken = Promise.withResolvers<void>();
        const second = viewOf(ended ? [exit] : []);
        const lasting = new LastingView({
          view: viewOf([output("a", 0)], broken.promise),
          from: 0,
          attach: async () => second,
          sandboxRuns: () => true,
        });
        const told = Array.fromAsync(lasting.events());
        if (what === "input") await lasting.writeStdin(Buffer.from("x"));
        else await lasting.closeStdin();
        broken.resolve();
        expect(await told).toEqual(ended ? [output("a", 0), exit] : [output("a", 0)]);
        expect(second.taken).toEqual([]);
        expect(second.closed).toBe(!ended);
      }
    },
  );

  test("input that had not arrived is sent again before what was given meanwhile, and nothing else is", async () => {
    const broken = Promise.withResolvers<void>();
    const attaching = Promise.withResolvers<void>();
    const stays = Promise.withResolvers<void>();
    const first = viewOf([], broken.promise);
    const counts: (number | undefined)[] = [];
    let count: (taken: number) => void = () => undefined;
    first.watchInput = (listener) => {
      count = listener;
      listener(0);
    };
    const second = viewOf([output("b", 0)], stays.promise);
    second.watchInput = (listener) => listener(5);
    const lasting = new LastingView({
      view: first,
      from: 0,
      attach: async () => {
        await attaching.promise;
        return second;
      },
      sandboxRuns: () => true,
    });
    lasting.watchInput((taken) => counts.push(taken));
    const told = Array.fromAsync(lasting.events());
    for (const text of ["abc", "def", "ghi"]) await lasting.writeStdin(Buffer.from(text));
    count(3);
    broken.resolve();
    await settled();
    const written = lasting.writeStdin(Buffer.from("j"));
    const closed = lasting.closeStdin();
    attaching.resolve();
    await Promise.all([written, closed]);
    expect(first.taken).toEqual(["abc", "def", "ghi"]);
    expect(second.taken).toEqual(["fghij", "end"]);
    expect(counts).toEqual([0, 3, 5]);
    stays.resolve();
    await lasting.close();
    expect(await told).toEqual([output("b", 0)]);
  });

  test("ends when what is missing of the input is not held any more, or another view has it", async () => {
    for (const left of [false, true]) {
      const broken = Promise.withResolvers<void>();
      const first = viewOf([], broken.promise);
      first.watchInput = (listener) => listener(0);
      const second = viewOf(left ? [exit] : []);
      second.info = {};
      second.watchInput = (listener) => listener(0);
      const attach = async () => second;
      const lasting = new LastingView({ view: first, from: 0, attach, sandboxRuns: () => true });
      const told = Array.fromAsync(lasting.events());
      const mebibyte = Buffer.alloc(2 ** 20);
      for (let piece = 0; piece < 9; piece += 1) await lasting.writeStdin(mebibyte);
      if (left) lasting.leaveInput();
      broken.resolve();
      expect(await told).toEqual(left ? [exit] : []);
      expect(second.taken).toEqual([]);
    }
  });

  test("what is written and waits ends at once when another view has the input, and so does what is written later", async () => {
    const broken = Promise.withResolvers<void>();
    for (const breaks of [false, true]) {
      const first = viewOf([], breaks ? undefined : broken.promise);
      const never = () => new Promise<void>(() => undefined);
      Object.assign(first, { writeStdin: never, closeStdin: never });
      const lasting = new LastingView({
        view: first,
        from: 0,
        attach: never as never,
        sandboxRuns: () => true,
      });
      const told = Array.fromAsync(lasting.events());
      await settled();
      const waiting = [lasting.writeStdin(Buffer.from("a")), lasting.closeStdin()];
      lasting.leaveInput();
      const ends = await Promise.allSettled([...waiting, lasting.writeStdin(Buffer.from("b"))]);
      expect(ends.map((end) => end.status === "rejected" && end.reason.code)).toEqual(
        Array(3).fill("conflict"),
      );
      void told;
    }
    broken.resolve();
  });

  /** Each attach is answered, and the view breaks at once. @returns how often that was, and what was told. */
  async function breaking(options: { brings: string; patienceMs: number }) {
    let attached = 0;
    const lasting = new LastingView({
      view: viewOf([]),
      from: 0,
      attach: async (from) => {
        attached += 1;
        if (attached === 100) return viewOf([exit]);
        return viewOf(options.brings === "" ? [] : [output(options.brings, from)]);
      },
      sandboxRuns: () => true,
      patienceMs: options.patienceMs,
    });
    const told = await Array.fromAsync(lasting.events());
    return { attached, told };
  }

  test("views that break at once are replaced ever less often, and not for ever", async () => {
    // At once, and after 10, 20, 40, 80, 160, 320 and 640 ms.
    const { attached, told } = await breaking({ brings: "", patienceMs: 2_000 });
    expect(told).toEqual([]);
    expect(attached).toBeGreaterThan(1);
    expect(attached).toBeLessThan(11);
  });

  test("those that bring output are replaced soon, as often as it takes", async () => {
    const startedMs = performance.now();
    const { attached, told } = await breaking({ brings: "x", patienceMs: 10_000 });
    expect([attached, told.length]).toEqual([100, 100]);
    expect(performance.now() - startedMs).toBeGreaterThan(500);
  });

  test("those that bring nothing but take some of the input are as good, and count once for what they took", async () => {
    for (const inputBytes of [100, 10]) {
      let attached = 0;
      const taking = (taken: number) =>
        Object.assign(viewOf(taken === 100 ? [exit] : []), {
          watchInput: (listener: (taken: number) => void) => listener(Math.min(taken, inputBytes)),
        });
      const lasting = new LastingView({
        view: taking(0),
        from: 0,
        attach: async () => taking(++attached),
        sandboxRuns: () => true,
        patienceMs: inputBytes === 100 ? 10_000 : 700,
      });
      await lasting.writeStdin(Buffer.alloc(inputBytes));
      const told = await Array.fromAsync(lasting.events());
      expect(told).toEqual(inputBytes === 100 ? [exit] : []);
      if (inputBytes === 10) expect(attached).toBeLessThan(25);
    }
  });

  test("no attempt outlasts its patience, nor its closing", async () => {
    for (const patienceMs of [50, 600_000]) {
      const begun = Promise.withResolvers<void>();
      const lasting = new LastingView({
        view: viewOf([]),
        from: 0,
        attach: (_from, signal) =>
          new Promise((_resolve, reject) => {
            begun.resolve();
            signal.addEventListener("abort", () => reject(new Unavailable("no answer")));
          }),
        sandboxRuns: () => true,
        patienceMs,
      });
      const told = Array.fromAsync(lasting.events());
      await begun.promise;
      if (patienceMs > 50) await lasting.close();
      expect(await told).toEqual([]);
    }
  });
});
