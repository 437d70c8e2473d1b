import { execFile } from "node:child_process";
import { ProviderError } from "../ports/errors.ts";

/** Runs a small program of the machine to its end. @throws ProviderError with what it said when it fails. */
export function runProgram(
  file: string,
  args: readonly string[],
  options: { signal: AbortSignal },
): Promise<string> {
  const { promise, resolve, reject } = Promise.withResolvers<string>();
  if (options.signal.aborted) return Promise.reject(options.signal.reason);
  const settings = { signal: options.signal, killSignal: "SIGKILL", maxBuffer: 1024 * 1024 } as const;
  execFile(file, args, settings, (error, stdout, stderr) => {
    if (options.signal.aborted) return reject(options.signal.reason);
    if (error === null) return resolve(stdout);
    const said = stderr.trim().split("\n").slice(-3).join("; ");
    reject(new ProviderError(`${file} failed: ${said || error.message}`, { cause: error }));
  });
  return promise;
}
