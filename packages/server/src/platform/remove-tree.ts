import { runProgram } from "./run-program.ts";

/**
 * Removes a tree whose names somebody else may be changing meanwhile. `rm` of the machine goes through opened folders and follows
 * no link; Node's own looks a path up again and again, and a folder that becomes a link in between leads it elsewhere.
 * @throws ProviderError with what could not be removed; the signal's reason.
 */
export async function removeTree(path: string, options: { signal?: AbortSignal } = {}): Promise<void> {
  await runProgram("rm", ["-rf", "--", path], { signal: options.signal ?? new AbortController().signal });
}
