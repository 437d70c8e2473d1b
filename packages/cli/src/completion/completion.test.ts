import { spawnSync } from "node:child_process";
import { chmodSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import path from "node:path";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { wordsOf } from "../commands/ls.ts";
import { createProgram } from "../program.ts";
import { bashCompletion } from "./bash.ts";
import { placesOf } from "./command-tree.ts";
import { fishCompletion } from "./fish.ts";
import { zshCompletion } from "./zsh.ts";

const places = placesOf(createProgram());
let folder: string;

beforeAll(() => {
  folder = mkdtempSync(path.join(tmpdir(), "alcove-completion-"));
  const command = path.join(folder, "alcove");
  writeFileSync(command, '#!/bin/sh\n[ "$*" = "ls --words" ] && printf "sb-one\\nweb\\nsb-two\\n"\n');
  chmodSync(command, 0o755);
});
afterAll(() => rmSync(folder, { recursive: true, force: true }));

interface Tried {
  readonly shell: string;
  readonly args: readonly string[];
  readonly script: string;
  /** @returns a script of the shell that prints what the last word may become, a line each. */
  readonly ask: (words: readonly string[]) => string;
}

const shells: Tried[] = [
  {
    shell: "bash",
    args: ["--norc", "-c"],
    script: bashCompletion(places),
    // To bash "--option=value" is three words, or two while there is no value, and "name:/path" three.
    ask: (words) => {
      const split = words.flatMap((word) =>
        word.split(/([=:]+)/).filter((part, at) => part !== "" || at === 0),
      );
      return `COMP_WORDS=(${split.map((word) => `'${word}'`).join(" ")}); COMP_CWORD=${split.length - 1}; _alcove; printf '%s\\n' "\${COMPREPLY[@]}"`;
    },
  },
  {
    shell: "zsh",
    args: ["-f", "-c"],
    script: zshCompletion(places),
    // Completion itself runs in an editor alone: what it would be given is printed.
    ask: (words) =>
      `_describe() { local entry; for entry in "\${(@P)2}"; do print -r -- "\${entry%%:*}"; done }
       compadd() { shift; print -rl -- "$@"; }; compset() { :; }; _files() { print files; }; _message() { :; }
       words=(${words.map((word) => `'${word}'`).join(" ")}); CURRENT=${words.length}; _alcove`,
  },
  {
    shell: "fish",
    args: ["--no-config", "-c"],
    script: fishCompletion(places),
    ask: (words) =>
      `complete -C '${words.join(" ")}' | string replace -r '\\t.*' '' | string replace -r '^--[a-z]+=' ''`,
  },
];

for (const { shell, args, script, ask } of shells) {
  const there = spawnSync(shell, ["--version"]).status === 0;
  describe.skipIf(!there)(
    `completion in ${shell}${there ? "" : ` (skipped: no ${shell} on this machine)`}`,
    () => {
      const complete = (...words: string[]): string[] => {
        const { stdout, stderr } = spawnSync(shell, [...args, `${script}\n${ask(["alcove", ...words])}`], {
          cwd: folder,
          encoding: "utf8",
          env: { ...process.env, PATH: `${folder}:${process.env.PATH}`, HOME: folder },
        });
        expect(stderr).toBe("");
        const last = (words.at(-1) ?? "").replace(/^--[a-z]+=/, "");
        return stdout.split("\n").filter((word) => word !== "" && word.startsWith(last));
      };

      it("names commands, those below them, options and what options may be", () => {
        expect(complete("sp")).toEqual(["spawn"]);
        expect(complete("").sort()).toEqual(
          expect.arrayContaining(["exec", "ls", "quota", "serve", "spawn"]),
        );
        expect(complete("quota", "").sort()).toEqual(["help", "ls", "rm", "set", "show"]);
        expect(complete("quota", "set", "--max-")).toEqual(
          expect.arrayContaining(["--max-sandboxes", "--max-ttl", "--max-memory"]),
        );
        expect(complete("spawn", "--network", "").sort()).toEqual(["host", "none", "outbound"]);
        expect(complete("spawn", "--network=").sort()).toEqual(["host", "none", "outbound"]);
        expect(complete("spawn", "--network=o")).toEqual(["outbound"]);
        expect(complete("ls", "--state", "un")).toEqual(["unhealthy"]);
        expect(complete("spawn", "--ttl", "s")).toEqual([]);
        expect(complete("completion", "").sort()).toEqual(["bash", "fish", "zsh"]);
        expect(complete("quota", "remove", "--us")).toEqual(["--user-id"]);
      });

      it("names sandboxes where a command takes them", () => {
        for (const command of ["exec", "kill", "shell", "extend", "cp"])
          expect(complete(command, "sb-").sort()).toEqual(["sb-one", "sb-two"]);
        expect(complete("kill", "w")).toEqual(["web"]);
        expect(complete("exec", "--timeout", "30s", "-e", "A=b", "w")).toEqual(["web"]);
        expect(complete("exec", "--timeout=30s", "--user-id", "zoe", "sb-").sort()).toEqual([
          "sb-one",
          "sb-two",
        ]);
        expect(complete("serve", "sb-")).toEqual([]);
        expect(complete("image", "import", "sb-")).toEqual([]);
      });

      it("names them where they are meant, and not again behind that", () => {
        expect(complete("kill", "sb-one", "-q", "w")).toEqual(["web"]);
        expect(complete("cp", "-r", "/tmp/a", "w")).toEqual(["web"]);
        expect(complete("cp", "web:/tmp/a", "w")).toEqual(["web"]);
        expect(complete("exec", "--url", "http://127.0.0.1:7423", "w")).toEqual(["web"]);
        for (const words of [
          ["exec", "sb-one"],
          ["exec", "--timeout", "30s", "sb-one", "ls"],
          ["extend", "sb-one"],
          ["forward", "sb-one", "80"],
        ])
          expect(complete(...words, "sb-")).toEqual([]);
        expect(complete("completion", "bash", "z")).toEqual([]);
      });
    },
  );
}

it("every command and every option of the program has its place", () => {
  const at = (name: string) => places.find((place) => place.at === name);
  expect(at("alcove")?.arguments[0]?.words.map(({ name }) => name)).toContain("completion");
  expect(at("alcove exec")?.options.map(({ long }) => long)).toContain("--cpu-time");
  expect(at("alcove serve")?.options.find(({ long }) => long === "--config")?.value).toBe("file");
});

it("a service that gives sandboxes other names gives no shell anything to run", () => {
  expect(wordsOf({ id: "sb-a", name: "web-1" })).toEqual(["sb-a", "web-1"]);
  expect(wordsOf({ id: "$(id)", name: "-a" })).toEqual([]);
});
