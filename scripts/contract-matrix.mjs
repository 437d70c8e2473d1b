// What became of each case of the provider contract, provider by provider: the table of docs/providers.md.
// Plain JavaScript, because scripts/test.mjs uses it.
import { existsSync, readFileSync, writeFileSync } from "node:fs";
import path from "node:path";
import { projectRoot } from "./node-runtime.mjs";

const page = path.join(projectRoot, "docs", "providers.md");
const [begin, end] = ["<!-- contract matrix -->", "<!-- end of contract matrix -->"];
const marks = { passed: "✓", skipped: "–", failed: "✗" };

/** @returns by provider, by title: what it is about and what became of it; of a case that ran twice the last. */
export function contractResults(file) {
  const results = new Map();
  const lines = existsSync(file) ? readFileSync(file, "utf8").split("\n") : [];
  for (const line of lines) {
    if (line === "") continue;
    const { provider, group, title, state } = JSON.parse(line);
    if (!results.has(provider)) results.set(provider, new Map());
    results.get(provider).set(title, { group, state });
  }
  return results;
}

/** The table as the page has it, with what is new: a row for each case, a column for each provider. */
export function contractTable(results) {
  const { providers: known, rows: written } = writtenTable();
  const providers = [...new Set([...known, ...results.keys()])].sort();
  const groups = new Map(written.map(({ title, group }) => [title, group]));
  for (const each of results.values()) for (const [title, { group }] of each) groups.set(title, group);
  const cellsBefore = new Map(written.map(({ title, cells }) => [title, cells]));
  const cell = (title, provider) =>
    marks[results.get(provider)?.get(title)?.state] ??
    cellsBefore.get(title)?.[known.indexOf(provider)] ??
    "not run";
  const lines = [...new Set(groups.values())]
    .sort()
    .flatMap((group) => [
      row([`**${group}**`, ...providers.map(() => "")]),
      ...[...groups]
        .filter(([, own]) => own === group)
        .map(([title]) => row([title, ...providers.map((provider) => cell(title, provider))])),
    ]);
  return [row(["Case", ...providers]), row(["---", ...providers.map(() => ":-:")]), ...lines].join("\n");
}

/** Cases that failed, and those of which the page says something else. What has not run is not asked for. */
export function contractFindings(results) {
  const { providers, rows } = writtenTable();
  const written = new Map(rows.map(({ title, cells }) => [title, cells]));
  return [...results].flatMap(([provider, cases]) =>
    [...cases].flatMap(([title, { state }]) => {
      if (state === "failed") return [`failed on ${provider}: ${title}`];
      const said = written.get(title)?.[providers.indexOf(provider)];
      const found = marks[state];
      return said === found
        ? []
        : [`docs/providers.md has ${said ?? "nothing"} for ${found} of ${provider}: ${title}`];
    }),
  );
}

export function writeTable(results) {
  const text = readFileSync(page, "utf8");
  const [from, to] = [text.indexOf(begin) + begin.length, text.indexOf(end)];
  writeFileSync(page, `${text.slice(0, from)}\n\n${contractTable(results)}\n\n${text.slice(to)}`);
}

function writtenTable() {
  const text = readFileSync(page, "utf8");
  const [header, , ...lines] = text
    .slice(text.indexOf(begin) + begin.length, text.indexOf(end))
    .trim()
    .split("\n")
    .map(cellsOf);
  const rows = [];
  let group = "";
  for (const [title, ...cells] of lines) {
    if (title.startsWith("**")) group = title.replaceAll("*", "");
    else rows.push({ title, group, cells });
  }
  return { providers: header.slice(1), rows };
}

const row = (cells) => `| ${cells.join(" | ")} |`;
const cellsOf = (line) =>
  line
    .split("|")
    .slice(1, -1)
    .map((cell) => cell.trim());
