import { expect, it, vi } from "vitest";
import { readQuery } from "./read-query.ts";

it("texts are decoded, also such as are not escaped, and a percent sign may mean itself", () => {
  const bytes = Buffer.from("/é").toString("latin1");
  expect(readQuery(`a=%2F%C3%A9+x&b=${bytes}&c=50%&d=&metadata.e=`)).toEqual({
    a: "/é x",
    b: "/é",
    c: "50%",
    "metadata.e": "",
  });
  expect(readQuery("")).toEqual({});
});

it.each(["/w/bad%FF", "/w/%C3", "/w/%ED%A0%80", "/é%FF", "/w/bad\xff"])("%s is no text", (path) => {
  const { path: read } = readQuery(`path=${path}`) as { path: string };
  expect(read.isWellFormed()).toBe(false);
});

it("what escapes bytes, and what only looks like it, is read as it was written", () => {
  expect(readQuery("a=%c3%a9%C3%A9%F0%9F%98%80&b=%4&c=%zz%&d=%%41&e=%2")).toEqual({
    a: "éé😀",
    b: "%4",
    c: "%zz%",
    d: "%A",
    e: "%2",
  });
});

it("thousands of parts that are no text throw nothing, which would cost more than all the rest of their request", () => {
  const decoded = vi.spyOn(globalThis, "decodeURIComponent");
  try {
    readQuery("%ff=%ff&".repeat(1_000));
    expect(decoded.mock.results.filter(({ type }) => type === "throw")).toEqual([]);
  } finally {
    decoded.mockRestore();
  }
});
