import { Readable } from "node:stream";
import { describe, expect, test } from "vitest";
import { readEvents, readLines, readNdjson } from "./lines.ts";

const all = async <T>(items: AsyncIterable<T>): Promise<T[]> => Array.fromAsync(items);
const inPieces = (text: string, size: number) => {
  const bytes = Buffer.from(text);
  const pieces: Buffer[] = [];
  for (let at = 0; at < bytes.length; at += size) pieces.push(bytes.subarray(at, at + size));
  return Readable.from(pieces);
};

describe("readLines()", () => {
  test.each([1, 2, 3, 5, 1_000])("joins lines and characters cut after every %i bytes", async (size) => {
    expect(await all(readLines(inPieces("añb\r\n\n☃ snow\nlast", size)))).toEqual([
      "añb",
      "",
      "☃ snow",
      "last",
    ]);
  });

  test("reads on only when asked, and lets go of the stream when left early", async () => {
    let pulled = 0;
    const body = Readable.from(
      (function* () {
        for (;;) {
          pulled++;
          yield Buffer.from("line\n");
        }
      })(),
      { highWaterMark: 1 },
    );
    for await (const line of readLines(body)) {
      expect(line).toBe("line");
      break;
    }
    expect(pulled).toBeLessThan(5);
    expect(body.destroyed).toBe(true);
  });
});

describe("readNdjson()", () => {
  test("passes over empty lines", async () => {
    expect(await all(readNdjson(inPieces('{"a":1}\n\n{"a":"☃"}\n', 4)))).toEqual([{ a: 1 }, { a: "☃" }]);
  });

  test("what is not JSON is an error that shows it", async () => {
    await expect(all(readNdjson(inPieces("<html>\n", 100)))).rejects.toMatchObject({
      code: "bad_response",
      message: "not JSON: <html>",
    });
  });
});

describe("readEvents()", () => {
  test("reads ids, data of several lines, retry, and passes over comments", async () => {
    const pauses: number[] = [];
    const text = ": hi\nretry: 700\n\nid: 4\ndata: a\ndata: b\n\n: beat\n\ndata:c\n\nid: 9\ndata: cut";
    const events = await all(readEvents(inPieces(text, 3), { retry: (ms) => pauses.push(ms) }));
    expect(events).toEqual([
      { id: "4", data: "a\nb" },
      { id: "4", data: "c" },
    ]);
    expect(pauses).toEqual([700]);
  });

  test("tells an id that comes before any message", async () => {
    const ids: string[] = [];
    const text = "retry: 700\nid: 3\n\nid: 4\ndata: a\n\n";
    const events = await all(readEvents(inPieces(text, 2), { id: (id) => ids.push(id) }));
    expect([ids, events]).toEqual([["3"], [{ id: "4", data: "a" }]]);
  });
});
