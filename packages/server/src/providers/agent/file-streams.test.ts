import { expect, it } from "vitest";
import type { AgentConnection } from "./connection.ts";
import { Watch } from "./file-streams.ts";

it.each([
  ["many", 1_000, 10],
  ["long", 6, 100_000],
])(
  "a watch whose reader lets %s changes wait holds its agent, and lets it go on later",
  async (_how, most, length) => {
    const calls: string[] = [];
    const connection = {
      pause: () => calls.push("pause"),
      resume: () => calls.push("resume"),
      destroy: () => undefined,
    };
    const watch = new Watch();
    watch.attach(connection as unknown as AgentConnection);
    watch.onReply();
    const change = { event: "change", type: "write", path: `/${"a".repeat(length)}` };
    for (let count = 1; count <= most; count += 1) {
      expect(calls).toEqual([]);
      watch.onEvent(change);
    }
    expect(calls).toEqual(["pause"]);
    const taken = watch.changes[Symbol.asyncIterator]();
    for (let count = 0; count < most; count += 1) await taken.next();
    expect(calls).toEqual(["pause", "resume"]);
    watch.cancel(undefined);
  },
);
