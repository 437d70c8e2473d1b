import { spawn } from "node:child_process";
import { spawned } from "../platform/spawned.ts";
import { ProviderError } from "../ports/errors.ts";

export interface ProgramResult {
  exitCode: number;
  /** The last of what it wrote. */
  stderr: string;
}

const keptText = 8_192;
const termGraceMs = 2_000;

/** Thrown when a program is not installed. */
export class ProgramMissing extends ProviderError {
  constructor(program: string, options: { cause: unknown }) {
    super(`the program ${program} is not installed`, options);
  }
}

/**
 * Runs a program to its end; an abort ends it, at first politely.
 * @throws ProgramMissing; the signal's reason when it aborted.
 */
export async function runProgram(
  program: string,
  args: readonly string[],
  options: { signal: AbortSignal; onLine?: (line: string) => void },
): Promise<ProgramResult> {
  options.signal.throwIfAborted();
  const child = await spawned(spawn(program, args, { stdio: ["ignore", "pipe", "pipe"] }), options).catch(
    (cause: unknown) => {
      if (cause instanceof Error && "code" in cause && cause.code === "ENOENT")
        throw new ProgramMissing(program, { cause });
      throw cause;
    },
  );
  let stderr = "";
  for (const stream of [child.stdout, child.stderr])
    stream.setEncoding("utf8").on("data", (text: string) => {
      if (stream === child.stderr) stderr = (stderr + text).slice(-keptText);
      for (const line of text.split(/[\r\n]+/)) if (line.trim() !== "") options.onLine?.(line.trim());
    });
  let killTimer: NodeJS.Timeout | undefined;
  const stop = () => {
    child.kill("SIGTERM");
    killTimer = setTimeout(() => child.kill("SIGKILL"), termGraceMs);
  };
  options.signal.addEventListener("abort", stop, { once: true });
  try {
    const exitCode = await new Promise<number>((resolve, reject) => {
      child.on("error", reject);
      child.on("close", (code) => resolve(code ?? 128));
    });
    options.signal.throwIfAborted();
    return { exitCode, stderr: stderr.trim() };
  } finally {
    clearTimeout(killTimer);
    options.signal.removeEventListener("abort", stop);
  }
}
