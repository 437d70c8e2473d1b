import { expect, test } from "vitest";
import { createProgram } from "./program.ts";
import { runCli } from "./testing/run-cli.ts";

const whole = createProgram();
const words = whole.commands.flatMap((command) => [command.name(), ...command.aliases()]);

test("each word that calls a command makes it as the whole command line does", () => {
  expect(words.length).toBeGreaterThan(25);
  for (const word of words) {
    const named = (program: typeof whole) =>
      program.commands.find((command) => [command.name(), ...command.aliases()].includes(word));
    const alone = createProgram(word);
    expect(named(alone)?.helpInformation(), word).toBe(named(whole)?.helpInformation());
    const isAlone = word === "completion" || alone.commands.length < 10;
    expect(isAlone, `${word} is among the words of its group in program.ts`).toBe(true);
  }
});

test("a word that calls nothing is looked up among all", () => {
  for (const word of [undefined, "help", "--help", "spwan"])
    expect(createProgram(word).helpInformation()).toBe(whole.helpInformation());
});

test.each([
  [["serve", "--port", "0"], 0, ""],
  [["serve", "--listen", "x"], 2, "unknown option '--listen'"],
])(
  "the set-up asks of %j whether they are right, before it does what takes long",
  async (args, code, told) => {
    const { stdout, ...result } = await runCli(args, { env: { ALCOVE_ARGUMENTS_ONLY: "1" } });
    expect([result.code, stdout]).toEqual([code, ""]);
    expect(result.stderr).toContain(told);
  },
);
