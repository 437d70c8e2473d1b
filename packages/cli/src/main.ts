import { CommanderError } from "@commander-js/extra-typings";
import { exitCodes } from "./exit-codes.ts";
import { createProgram } from "./program.ts";
import { exitWhenReaderLeaves, flushOutput } from "./terminal/output.ts";

/** Runs the command line of this process and ends it. */
export async function main(): Promise<never> {
  exitWhenReaderLeaves();
  // A command may wait for nothing but timers that keep no process alive.
  setInterval(() => undefined, 60_000);
  const code = await run(process.argv.slice(2));
  await flushOutput();
  process.exit(code);
}

/** @returns the exit code. */
export async function run(args: readonly string[]): Promise<number> {
  try {
    const program = createProgram(args[0]);
    // Asked by the set-up, before what takes minutes: a word that is wrong is told at once.
    if (process.env.ALCOVE_ARGUMENTS_ONLY === "1") program.hook("preAction", endBeforeAction);
    await program.parseAsync([...args], { from: "user" });
    return exitCodes.ok;
  } catch (error) {
    if (error instanceof CommanderError) return error.exitCode === 0 ? exitCodes.ok : exitCodes.usage;
    const { reportFailure } = await import("./failure.ts");
    return reportFailure(error);
  }
}

function endBeforeAction(): never {
  throw new CommanderError(0, "alcove.argumentsOnly", "the arguments are right");
}
