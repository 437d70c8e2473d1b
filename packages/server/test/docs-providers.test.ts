import { existsSync, readdirSync, readFileSync } from "node:fs";
import { describe, expect, it } from "vitest";
import { providerNames } from "../src/config/providers.ts";
import { owedFor } from "../src/ports/contract/provider/owed-for.ts";
import { contractSubjects } from "../src/ports/contract/provider/subjects.ts";

const docs = new URL("../../../docs/", import.meta.url);
const page = (name: string) => readFileSync(new URL(`${name}.md`, docs), "utf8");

/** Titles of the contract's cases, as their files have them. */
function caseTitles(): string[] {
  const folder = new URL("../src/ports/contract/provider/", import.meta.url);
  return readdirSync(folder)
    .filter((file) => file.endsWith("-contract.ts"))
    .flatMap((file) => [
      ...readFileSync(new URL(file, folder), "utf8").matchAll(/^ {2}it\((["'])(.+?)\1, /gm),
    ])
    .map(([, , title = ""]) => title);
}

describe("docs/providers.md", () => {
  const [, table = ""] = /<!-- contract matrix -->(.*?)<!-- end/s.exec(page("providers")) ?? [];
  const [header = [], , ...rows] = table
    .trim()
    .split("\n")
    .map((line) =>
      line
        .split("|")
        .slice(1, -1)
        .map((cell) => cell.trim()),
    );
  const cases = rows.filter(([title]) => !title?.startsWith("**"));

  it("has a column for each provider that runs the contract, and a row for each case", () => {
    expect(header.slice(1).sort()).toEqual([...contractSubjects].sort());
    expect(cases.map(([title]) => title).sort()).toEqual(caseTitles().sort());
  });

  it("has no failed cell, and none that was not run", () => {
    const marks = new Set(cases.flatMap(([, ...cells]) => cells));
    expect([...marks].sort()).toEqual(["–", "✓"].sort());
  });

  it("has nothing not announced but what the table of capabilities lets a provider not owe", () => {
    const left = cases.filter(([, ...cells]) => cells.includes("–")).map(([title = ""]) => title);
    expect(left.filter((title) => owedFor[title] === undefined)).toEqual([]);
  });
});

describe.each(providerNames)("the page of %s", (name) => {
  it("says how it isolates, what it can, what bounds it and what it costs", () => {
    expect(existsSync(new URL(`${name}-provider.md`, docs))).toBe(true);
    const headings = [...page(`${name}-provider`).matchAll(/^## (.+)$/gm)].map(([, heading]) => heading);
    expect(headings).toEqual(expect.arrayContaining(["Isolation", "Capabilities", "Limits", "Cost"]));
    expect(page("providers")).toContain(`(${name}-provider.md)`);
  });
});
