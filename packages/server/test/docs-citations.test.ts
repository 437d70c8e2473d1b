import { existsSync, readdirSync, readFileSync } from "node:fs";
import { expect, test } from "vitest";

/** Tests that docs/security.md and docs/operations/failures.md name exist: a claim beside a test that is gone is only a claim. */
const root = new URL("../../../", import.meta.url);
const places = ["", "packages/server/src/", "packages/server/src/providers/"].map(
  (place) => new URL(place, root),
);
const tested = [
  "packages/server",
  "packages/cli",
  "packages/sdk",
  "agent/alcove-agent",
  "agent/alcove-launch",
  "agent/filter",
];
/** Every line of a test, a contract or a program that tries: titles stand in one each. */
const lines = tested.flatMap((part) =>
  readdirSync(new URL(`${part}/`, root), { recursive: true, encoding: "utf8" })
    .filter((file) => /\.test\.ts$|contract\/.*\.ts$|-suite\.ts$|(?:tests|src)\/.*\.rs$/.test(file))
    .filter((file) => !file.includes("node_modules"))
    .flatMap((file) => readFileSync(new URL(`${part}/${file}`, root), "utf8").split("\n")),
);

/** What is told in words, not by a title. */
const inWords =
  /^(?:the (?:two|three) tests of these names|the guest check(?: under QEMU)?|on every provider|the filter itself)$/;

/** A title with parts left out: each part in its order, in one line; `_` of a Rust name stands for a blank. */
function isTitle(cited: string): boolean {
  const parts = cited
    .split("…")
    .map((part) => part.trim().replaceAll(/[,.]$/g, ""))
    .filter((part) => part !== "");
  return lines.some((line) => {
    const text = line.replaceAll("\\'", "'");
    const plain = text.replaceAll("_", " ");
    return [text, plain].some((candidate) => {
      let from = 0;
      return parts.every((part) => {
        const at = candidate.toLowerCase().indexOf(part.toLowerCase(), from);
        from = at + part.length;
        return at >= 0;
      });
    });
  });
}

function citations(page: string): string[] {
  const rows = readFileSync(new URL(page, root), "utf8")
    .split("\n")
    .filter((line) => line.startsWith("|") && !/^\|(?:-|.*\| Test)/.test(line));
  return rows.map((row) => row.split(" | ").at(-1)?.replace(/ \|$/, "") ?? "");
}

const pages = ["docs/security.md", "docs/operations/failures.md"];

test.each(pages)("files that %s cites exist", (page) => {
  const files = citations(page).flatMap((cell) =>
    [...cell.matchAll(/`([^`]*\/[^`]*)`/g)].map(([, file = ""]) => file),
  );
  expect(files.length).toBeGreaterThan(20);
  const missing = files.filter(
    (file) => !places.some((place) => existsSync(new URL(file.replace(/\*.*/, ""), place))),
  );
  expect(missing).toEqual([]);
});

test("titles that docs/security.md cites are those of tests", () => {
  const titles = citations("docs/security.md")
    .map((cell) => cell.replaceAll(/`[^`]*`/g, "").replaceAll(/[():]/g, ";"))
    .flatMap((cell) => cell.split(/[;,]/))
    .map((title) => title.trim().replace(/^and /, ""))
    .filter((title) => title !== "" && title !== "…");
  expect(titles.length).toBeGreaterThan(20);
  expect(titles.filter((title) => !inWords.test(title) && !isTitle(title))).toEqual([]);
});

test("docs/architecture.md has a row for every folder of core", () => {
  const page = readFileSync(new URL("docs/architecture.md", root), "utf8");
  const folders = readdirSync(new URL("packages/server/src/core/", root), { withFileTypes: true })
    .filter((entry) => entry.isDirectory() && entry.name !== "testing")
    .map(({ name }) => name);
  expect(folders.filter((name) => !page.includes(`\`…/core/${name}\``))).toEqual([]);
});
