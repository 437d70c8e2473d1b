import { expect, it } from "vitest";
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
