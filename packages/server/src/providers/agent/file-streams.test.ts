import { expect, it } from "vitest";
import { silentLogger } from "../../platform/logger.ts";
import { AgentClient } from "./agent-client.ts";
import type { AgentConnection } from "./connection.ts";
import { unixDialer } from "./dialers.ts";
import { fakeAgent } from "./fake-agent.ts";
import { Download, Watch } from "./file-streams.ts";
import { frameKinds } from "./frames.ts";

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
      turn: () => undefined,
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

it.each([true, false])(
  "an upload arrives whole, and its pieces are given back (%s) behind it",
  async (spends) => {
    const info = { name: "f", path: "/f", type: "file", size: 1, mode: 0o644, uid: 0, gid: 0, mtime_ms: 0 };
    const arrived: Buffer[] = [];
    await using agent = await fakeAgent(
      () => undefined,
      (kind, bytes, connection) => {
        if (kind === frameKinds.data) arrived.push(Buffer.from(bytes));
        else if (kind === frameKinds.eof) connection.answer({ ...info, entries: 2 });
      },
    );
    await using client = new AgentClient({
      dial: unixDialer(agent.path),
      token: "0".repeat(64),
      name: "sb-test",
      owner: "",
      logger: silentLogger,
    });
    const pieces = Array.from({ length: 40 }, (_, at) => Buffer.allocUnsafeSlow(65_536).fill(at));
    const whole = Buffer.concat(pieces);
    const body = async function* (from: number, to: number) {
      yield* pieces.slice(from, to);
    };
    const options = { signal: AbortSignal.timeout(20_000), spends };
    await client.files.write("/f", body(0, 20), options);
    await client.files.unpack("/d", body(20, 40), options);
    expect(Buffer.concat(arrived).equals(whole)).toBe(true);
    expect(pieces.every((piece) => piece.length === (spends ? 0 : 65_536))).toBe(true);
  },
);

it("a download whose last part comes behind one that filled it holds its connection no longer", async () => {
  const download = new Download({ lengthOf: () => 616_448 });
  let paused = false;
  const connection = {
    pause: () => {
      paused = true;
    },
    resume: () => {
      paused = false;
    },
    destroy: () => undefined,
  };
  download.attach(connection as unknown as AgentConnection);
  download.onReply({});
  for (const bytes of [614_400, 2_048]) download.onRaw(frameKinds.data, Buffer.alloc(bytes));
  expect(Buffer.concat(await download.body.toArray())).toHaveLength(616_448);
  expect(paused).toBe(false);
  download.end();
});
