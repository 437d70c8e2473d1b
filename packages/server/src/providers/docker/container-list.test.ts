import { expect, it } from "vitest";
import { ContainerListReader } from "./container-list.ts";

const own = { "alcove.instance": "i", "alcove.runtime": "rt-1" };

/** A container as the engine tells of one. */
function container(more: Record<string, unknown> = {}) {
  return {
    Id: "c1",
    Names: ["/alcove-i-rt-1"],
    Image: "img",
    Command: 'sh -c "x\\\\"',
    Created: 1_700_000_000,
    Ports: [{ PrivatePort: 80, Type: "tcp", Labels: { "alcove.runtime": "not this" }, Id: "nor this" }],
    Labels: { ...own, other: "x" },
    State: "running",
    Status: "Up",
    HostConfig: { NetworkMode: "none", State: "nor that", SizeRw: 7 },
    NetworkSettings: { Networks: { none: { Labels: { "alcove.instance": "no" }, GwPriority: 0 } } },
    Mounts: [],
    ...more,
  };
}

function read(text: string, pieceBytes = text.length + 1) {
  const reader = new ContainerListReader();
  const bytes = Buffer.from(text);
  for (let at = 0; at < bytes.length; at += pieceBytes) reader.push(bytes.subarray(at, at + pieceBytes));
  return reader.end();
}

const unnamed = { Id: "c1", State: "running", Labels: own };
const kept = { ...unnamed, Name: "alcove-i-rt-1" };

it("keeps id, name, state, size and labels of its own, wherever the pieces are cut", () => {
  const list = [
    container(),
    container({ Id: 'c"2\\', State: "exited", SizeRw: 42, Labels: null, SizeRootFs: 43, Names: null }),
    container({
      Id: "ü",
      Names: ["/another/alias", "/alcove-i-rt-2"],
      Labels: { 'quo"te\\': '\\"', ...own, "alcove.sandbox": 'a\\"b' },
    }),
  ];
  const expected = [
    kept,
    { Id: 'c"2\\', State: "exited", Labels: {}, SizeRw: 42 },
    { Id: "ü", State: "running", Name: "alcove-i-rt-2", Labels: { ...own, "alcove.sandbox": 'a\\"b' } },
  ];
  for (const text of [JSON.stringify(list), JSON.stringify(list, null, 2), `${JSON.stringify(list)}\n`])
    for (let pieceBytes = 1; pieceBytes < 80; pieceBytes++)
      expect(read(text, pieceBytes), String(pieceBytes)).toEqual(expected);
});

it("an empty list has none, as has null", () => {
  expect(read("[]\n")).toEqual([]);
  expect(read("null\n")).toEqual([]);
});

it("labels, ports and whatever else is long beyond measure cost no memory, and hide neither their container nor others", () => {
  const reader = new ContainerListReader();
  const before = process.memoryUsage();
  reader.push(Buffer.from(`[${JSON.stringify(container({ Id: "first" }))},{"Id":"c1","Labels":{"`));
  const long = Buffer.alloc(1_000_000, "x");
  // A name and a value of 100 MB each, and one that begins like ours.
  for (let count = 0; count < 100; count++) reader.push(long);
  reader.push(Buffer.from('":"'));
  for (let count = 0; count < 100; count++) reader.push(long);
  reader.push(Buffer.from('","alcove.long":"'));
  for (let count = 0; count < 100; count++) reader.push(long);
  reader.push(Buffer.from(`",${JSON.stringify(own).slice(1)},"State":"running"},`));
  reader.push(Buffer.from(`${JSON.stringify(container({ Id: "last" }))}]`));
  expect(reader.end()).toEqual([{ ...kept, Id: "first" }, unnamed, { ...kept, Id: "last" }]);
  const after = process.memoryUsage();
  expect(after.arrayBuffers + after.heapUsed - before.arrayBuffers - before.heapUsed).toBeLessThan(30e6);
});

it.each([
  "",
  "[",
  '[{"Id":"a","State":"running"}',
  '[{"Id":"a',
  "{}",
  "]",
  '[{"Id":"a"}]',
  "[".repeat(100),
  "OK",
  "404 page not found",
  "<html>Bad gateway</html>",
  "true",
  '"null"',
  "[1,2]",
  "[null]",
])("what is no whole list of containers gives none: %s", (text) => {
  expect(() => read(text)).toThrow(/list of containers cannot be read/);
});
