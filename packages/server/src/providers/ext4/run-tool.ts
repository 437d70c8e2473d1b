import { runProgram } from "../../platform/run-program.ts";
import { ProviderError, StorageFull } from "../../ports/errors.ts";

/**
 * Runs a program of e2fsprogs. @returns what it said.
 * @throws StorageFull when the disk it writes to has no room; ProviderError with what it said when it fails otherwise.
 */
export async function runTool(
  file: string,
  args: readonly string[],
  options: { about: string; signal: AbortSignal },
): Promise<string> {
  try {
    return await runProgram(file, args, options);
  } catch (error) {
    options.signal.throwIfAborted();
    const said = error instanceof Error ? error.message : String(error);
    throw isFull(said)
      ? full(options.about, error)
      : new ProviderError(`${options.about}: ${said}`, { cause: error });
  }
}

/** Whether a program, or the kernel, says that a disk is full. */
export function isFull(said: string): boolean {
  return /No space left on device|Disk quota exceeded|ENOSPC|EDQUOT/.test(said);
}

export function full(about: string, cause: unknown): StorageFull {
  return new StorageFull(`${about}: the disk of the data directory is full; free space, then try again`, {
    cause,
  });
}
