import { type ParseArgsConfig, parseArgs } from "node:util";

/** What a program of the bench was given. Whatever it does not know ends it, in words. */
export function argumentsOf<T extends ParseArgsConfig>(
  program: string,
  config: T,
): ReturnType<typeof parseArgs<T>> {
  try {
    return parseArgs(config);
  } catch (error) {
    if (!(error instanceof TypeError)) throw error;
    refuse(program, error.message);
  }
}

export function refuse(program: string, why: string): never {
  console.error(`${program}: ${why}`);
  process.exit(2);
}
