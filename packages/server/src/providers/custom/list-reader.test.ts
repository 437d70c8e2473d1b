import { expect, it } from "vitest";
import { heldBytes } from "../../platform/testing/held-memory.ts";
import { ListReader } from "./list-reader.ts";
import { Unreadable } from "./tolerant-reader.ts";

/** @param size bytes that come at once. */
function read(text: string, size = text.length, field = "entries"): unknown[] {
  const bytes = Buffer.from(text);
  const reader = new ListReader(field, 65_536);
  const found: unknown[] = [];
  for (let at = 0; at < bytes.length; at += size)
    for (const thing of reader.push(bytes.subarray(at, at + size)))
      found.push(JSON.parse(Buffer.from(thing).toString()));
  reader.end();
  return found;
}

const entries = [{ path: '/a,]}"\\é', deep: [[1, { "]": "[" }], []] }, { path: "/b" }, 7, "x"];
const whole = JSON.stringify({ more: { entries: [0], list: [[2]] }, "x\\": "entries", entries, after: [] });

it.each([1, 2, 3, 7, 64, 10_000])("finds what stands in the list, whole, in pieces of %s bytes", (size) => {
  expect(read(whole, size)).toEqual(entries);
  expect(read(JSON.stringify(JSON.parse(whole), null, 2), size)).toEqual(entries);
});

it("knows the list by any spelling of its name, and one that is empty", () => {
  expect(read('{"Entries":[1]}')).toEqual([1]);
  expect(read('{"fileEntries" : [ 1 , 2 ]}', 1, "file_entries")).toEqual([1, 2]);
  expect(read('{"\\u0065ntries":[1]}')).toEqual([1]);
  expect(read('{"entries":[ \n ]}')).toEqual([]);
});

it.each([
  "",
  "[]",
  "null",
  "{}",
  '{"entries":7}',
  '{"entries":{"entries":[1]}}',
  '{"entries":[1]',
  '{"entries":[1',
  '{"entries":[1]}}',
  '{"entries":[1]}[]',
  `{"entries":[${"[".repeat(100)}`,
  `{"entries":["${"a".repeat(70_000)}`,
  `{"${"a".repeat(70_000)}`,
])("refuses %.30s", (text) => {
  expect(() => read(text, 1_000)).toThrow(Unreadable);
});

it("what is not whole yet takes the memory of its bytes, whatever pieces it comes in", async () => {
  const before = await heldBytes();
  const reader = new ListReader("entries", 1_048_576);
  for (const byte of `{"entries":["${"a".repeat(300_000)}`) reader.push(Buffer.from(byte)).next();
  expect((await heldBytes()) - before).toBeLessThan(4 * 1_048_576);
  expect([...reader.push(Buffer.from('"]}'))]).toHaveLength(1);
});
