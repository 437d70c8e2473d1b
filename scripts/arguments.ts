import { type ParseArgsConfig, parseArgs } from "node:util";

/**
 * What a program of this folder or the bench was given. Whatever it does not know ends it, in words.
 * @param usage what `--help` prints, before anything is built.
 */
export function argumentsOf<T extends ParseArgsConfig>(
  program: string,
  usage: string,
  config: T,
): ReturnType<typeof parseArgs<T>> {
  if (process.argv.slice(2).some((given) => given === "--help" || given === "-h")) {
    console.log(usage);
    process.exit(0);
  }
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
