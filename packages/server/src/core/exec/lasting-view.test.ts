import { describe, expect, test } from "vitest";
import { Unavailable } from "../../ports/errors.ts";
import type { ExecEvent, ExecView } from "../../ports/sandbox-operations.ts";
import { LastingView } from "./lasting-view.ts";
import { exitOf, settled } from "./testing/fake-sandbox.ts";

const output = (text: string, offset: number): ExecEvent => ({
  type: "output",
  stream: "stdout",
  data: Buffer.from(text),
  offset,
});

/** Tells its events and then breaks, once it may. */
function viewOf(events: ExecEvent[], breaks: Promise<void> = Promise.resolve()) {
  const taken: string[] = [];
  const view: ExecView & { taken: string[]; closed: boolean } = {
    execId: "ex-1" as ExecView["execId"],
    pid: 7,
    taken,
    closed: false,
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

const exit: ExecEvent = { type: "exit", exit: exitOf({}) };

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

  test.each(["input", "its end"])("ends when it breaks after %s was given", async (what) => {
    const broken = Promise.withResolvers<void>();
    let attached = 0;
    const lasting = new LastingView({
      view: viewOf([output("a", 0)], broken.promise),
      from: 0,
      attach: async () => {
        attached += 1;
        return viewOf([exit]);
      },
      sandboxRuns: () => true,
    });
    const told = Array.fromAsync(lasting.events());
    if (what === "input") await lasting.writeStdin(Buffer.from("x"));
    else await lasting.closeStdin();
    broken.resolve();
    expect(await told).toEqual([output("a", 0)]);
    expect(attached).toBe(0);
  });

  test("ends when input was given while there was no connection; input after it goes to the new one", async () => {
    for (const when of ["between", "after"]) {
      const attaching = Promise.withResolvers<void>();
      const stays = Promise.withResolvers<void>();
      const second = viewOf([output("b", 0)], stays.promise);
      const lasting = new LastingView({
        view: viewOf([]),
        from: 0,
        attach: async () => {
          await attaching.promise;
          return second;
        },
        sandboxRuns: () => true,
      });
      const told = Array.fromAsync(lasting.events());
      await settled();
      if (when === "between") await lasting.writeStdin(Buffer.from("x"));
      attaching.resolve();
      await settled();
      if (when === "after") await lasting.writeStdin(Buffer.from("x"));
      stays.resolve();
      expect(await told).toEqual(when === "between" ? [] : [output("b", 0)]);
      expect(second.taken).toEqual(when === "between" ? [] : ["x"]);
      if (when === "between") expect(second.closed).toBe(true);
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
