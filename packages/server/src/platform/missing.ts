import { access } from "node:fs/promises";

/** `fallback` where a file is not there, or a process whose file in /proc it is has ended. Any other failure is thrown. */
export async function orMissing<T, F>(result: Promise<T>, fallback: F): Promise<T | F> {
  try {
    return await result;
  } catch (error) {
    const code = error instanceof Error && "code" in error ? error.code : undefined;
    if (code === "ENOENT" || code === "ESRCH") return fallback;
    throw error;
  }
}

/** Whether there is something at a path. @throws when that cannot be told. */
export function exists(path: string): Promise<boolean> {
  return orMissing(
    access(path).then(() => true),
    false,
  );
}
