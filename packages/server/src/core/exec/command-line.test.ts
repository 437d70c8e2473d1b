import { execFileSync } from "node:child_process";
import fc from "fast-check";
import { expect, test } from "vitest";
import { commandArgv, quoteWord } from "./command-line.ts";

test("a shell reads every quoted word back unchanged", () => {
  const word = fc.string({ unit: "binary" }).filter((text) => !text.includes("\0") && text.isWellFormed());
  fc.assert(
    fc.property(fc.array(word, { minLength: 1, maxLength: 200 }), (words) => {
      const line = `printf '%s\\0' ${words.map(quoteWord).join(" ")}`;
      expect(execFileSync("/bin/sh", ["-c", line]).toString("utf8")).toBe(`${words.join("\0")}\0`);
    }),
    // Each is a process: many words in few.
    { numRuns: 10 },
  );
});

test("mode shell is a line for /bin/sh, mode argv the program itself", () => {
  expect(commandArgv({ command: "ls -l", args: ["a b", "c"], mode: "shell" })).toEqual([
    "/bin/sh",
    "-c",
    "ls -l 'a b' c",
  ]);
  expect(commandArgv({ command: "ls", args: ["a b"], mode: "argv" })).toEqual(["ls", "a b"]);
});
