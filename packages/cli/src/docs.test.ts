import { readFileSync } from "node:fs";
import { providerNames } from "@alcove/server/config";
import { SpawnRequest } from "@alcove/wire";
import type { CommandUnknownOpts as Command } from "@commander-js/extra-typings";
import { expect, test } from "vitest";
import { exitCodes } from "./exit-codes.ts";
import { createProgram } from "./program.ts";

const page = readFileSync(new URL("../../../docs/cli.md", import.meta.url), "utf8");

interface Leaf {
  readonly name: string;
  readonly flags: readonly string[];
}

function leaves(command: Command, prefix: string): Leaf[] {
  return command.commands.flatMap((child) => {
    const name = `${prefix} ${child.name()}`;
    if (child.commands.length > 0) return leaves(child, name);
    return [{ name, flags: child.options.map(({ long }) => long ?? "") }];
  });
}

const commands = leaves(createProgram(), "alcove");

/** The lines that speak of a command: its row of a table, and the section that has its name. */
function spokenOf(name: string): string {
  const rows = page.split("\n").filter((line) => line.startsWith("|") && line.includes(`\`${name}`));
  const section = new RegExp(`^### ${name.split(" ").at(-1)}$([^]*?)(?=^##|$(?![^]))`, "m").exec(page)?.[1];
  return [...rows, section ?? ""].join("\n");
}

const everywhere = ["--json", "--url", "--api-key", "--user-id", "--config", "--data-dir"];

test("docs/cli.md has a row for every command", () => {
  const rows = page.split("\n").filter((line) => line.startsWith("| `alcove "));
  const missing = commands.filter(({ name }) => !rows.some((row) => row.startsWith(`| \`${name}`)));
  expect(missing.map(({ name }) => name)).toEqual([]);
});

test.each(commands)("docs/cli.md names every option of $name", ({ name, flags }) => {
  const text = spokenOf(name);
  const missing = flags.filter(
    (flag) => !text.includes(flag) && !(everywhere.includes(flag) && page.includes(flag)),
  );
  expect(missing).toEqual([]);
});

test("README.md names every command", () => {
  const readme = readFileSync(new URL("../../../README.md", import.meta.url), "utf8");
  const line = readme.split("\n").find((text) => text.startsWith("- [The command](docs/cli.md)")) ?? "";
  const named = [...line.matchAll(/`([^`]*)`/g)].flatMap(([, words = ""]) => words.split(" "));
  const first = commands.map(({ name }) => name.split(" ")[1] ?? "");
  expect(named.sort()).toEqual([...new Set(first)].sort());
});

test("docs/cli.md names no command and no option that does not exist", () => {
  const known = new Set(["--help", "--version", ...commands.flatMap(({ flags }) => flags)]);
  const named = [...page.matchAll(/(?<![\w-])--[a-z][a-z-]+/g)].map(([flag]) => flag);
  expect(named.filter((flag) => !known.has(flag))).toEqual([]);
  const rows = [...page.matchAll(/^\| `(alcove [a-z]+(?: [a-z]+)?)/gm)].map(([, name]) => name);
  expect(rows.filter((name) => !commands.some((command) => command.name === name))).toEqual([]);
});

test("whatever a sandbox can be made with is an option of spawn", () => {
  const shorter: Record<string, string> = { memory_mb: "memory", owner_id: "owner" };
  const fields = Object.keys(SpawnRequest.properties);
  const flags = commands.find(({ name }) => name === "alcove spawn")?.flags;
  expect(flags).toEqual(expect.arrayContaining(fields.map((field) => `--${shorter[field] ?? field}`)));
});

test("alcove serve --help names every provider that can be the default", () => {
  const serve = createProgram().commands.find((command) => command.name() === "serve");
  const option = serve?.options.find(({ long }) => long === "--provider");
  expect(option?.description).toBe(`default provider: ${["auto", ...providerNames].join(", ")}`);
});

test("docs/cli.md has a row for every exit code of ours", () => {
  const table = page.split("## Exit codes")[1] ?? "";
  const rows = [...table.matchAll(/^\| (\d[\d, ]*) \|/gm)].flatMap(([, codes = ""]) => codes.split(", "));
  // Not ours: as a shell tells of a program that cannot be run, and of one that is not there.
  const told = rows.map(Number).filter((code) => code !== 126 && code !== 127);
  expect(told).toEqual(Object.values(exitCodes));
});
