import { expect, it } from "vitest";
import { enoughEpollWatches } from "./epoll-watches.ts";

const memoryBytes = 24 * 2 ** 30;
const set = (text: string) => enoughEpollWatches({ memoryBytes, read: async () => text });

it("a user has enough to wait for with when more than that does not fit into memory", async () => {
  // As Linux is set: 4 % of its memory.
  expect(await set("5491511\n")).toBe(134_217_728);
  expect(await set("134217727\n")).toBe(134_217_728);
  expect(await set("134217728\n")).toBeUndefined();
});

it("a machine that does not tell is not known to lack any", async () => {
  const missing = () => Promise.reject(Object.assign(new Error("no such file"), { code: "ENOENT" }));
  expect(await enoughEpollWatches({ memoryBytes, read: missing })).toBeUndefined();
  expect(await set("")).toBeUndefined();
});
