/** Waits for `result`; what is not there, a file or a process, gives `fallback`. */
export async function orMissing<T, F>(result: Promise<T>, fallback: F): Promise<T | F> {
  try {
    return await result;
  } catch (error) {
    const code = error instanceof Error && "code" in error ? error.code : undefined;
    if (code === "ENOENT" || code === "ESRCH") return fallback;
    throw error;
  }
}
