import { readdirSync, readFileSync } from "node:fs";
import { expect, it } from "vitest";
import { owedFor } from "./owed-for.ts";

it("every title in the table is that of one case", () => {
  const folder = new URL("./", import.meta.url);
  const sources = readdirSync(folder)
    .filter((file) => file.endsWith("-contract.ts"))
    .map((file) => readFileSync(new URL(file, folder), "utf8"));
  const titles = sources.flatMap((text) =>
    [...text.matchAll(/^ {2}it\("(.+?)", /gm)].map(([, title]) => title),
  );
  expect(titles.length).toBeGreaterThan(50);
  const strangers = Object.keys(owedFor).filter(
    (title) => titles.filter((each) => each === title).length !== 1,
  );
  expect(strangers).toEqual([]);
});
