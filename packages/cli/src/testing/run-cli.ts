import { type ChildProcessWithoutNullStreams, spawn } from "node:child_process";
import { once } from "node:events";
import { fileURLToPath } from "node:url";

export const cliEntry = fileURLToPath(new URL("../bin.cjs", import.meta.url));

export interface CliResult {
  code: number | null;
  stdout: string;
  stderr: string;
}

interface StartOptions {
  readonly url?: string;
  readonly cwd?: string;
  readonly env?: Record<string, string>;
}

/** A command of ours as a process of its own, away from the settings of whoever runs the tests. */
export function startCli(
  args: readonly string[],
  options: StartOptions = {},
): ChildProcessWithoutNullStreams {
  return startProcess(process.execPath, [cliEntry, ...args], options);
}

function startProcess(
  program: string,
  args: readonly string[],
  options: StartOptions,
): ChildProcessWithoutNullStreams {
  const env: NodeJS.ProcessEnv = {};
  for (const [name, value] of Object.entries(process.env)) if (!name.startsWith("ALCOVE_")) env[name] = value;
  if (options.url !== undefined) env.ALCOVE_URL = options.url;
  return spawn(program, args, {
    env: { ...env, ...options.env },
    ...(options.cwd === undefined ? {} : { cwd: options.cwd }),
  });
}

export async function runCli(
  args: readonly string[],
  options: { url?: string; cwd?: string; stdin?: string; env?: Record<string, string> } = {},
): Promise<CliResult> {
  const child = startCli(args, options);
  child.stdin.end(options.stdin ?? "");
  return finish(child);
}

/** As `runCli`, with standard output into a file. @param file such as /dev/full. */
export async function runCliInto(
  file: string,
  args: readonly string[],
  options: { url?: string } = {},
): Promise<CliResult> {
  const child = startProcess(
    "/bin/sh",
    ["-c", `exec "$@" >"$0"`, file, process.execPath, cliEntry, ...args],
    options,
  );
  child.stdin.end();
  return finish(child);
}

export async function finish(child: ChildProcessWithoutNullStreams): Promise<CliResult> {
  const out: Buffer[] = [];
  const err: Buffer[] = [];
  child.stdout.on("data", (chunk: Buffer) => out.push(chunk));
  child.stderr.on("data", (chunk: Buffer) => err.push(chunk));
  const [code] = await once(child, "close");
  return { code, stdout: Buffer.concat(out).toString("utf8"), stderr: Buffer.concat(err).toString("utf8") };
}
