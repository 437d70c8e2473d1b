import { type ExecFileException, execFile } from "node:child_process";
import { accessSync, constants } from "node:fs";
import { delimiter, join } from "node:path";

/** Where root's programs are, also for a user whose PATH leaves them out. */
const systemFolders = ["/usr/local/sbin", "/usr/sbin", "/sbin"];

/** Finds a program as a shell would. @returns its path, or undefined when the machine lacks it. */
export function findProgram(name: string): string | undefined {
  const folders = [...(process.env.PATH ?? "").split(delimiter), ...systemFolders];
  return folders
    .filter((folder) => folder !== "")
    .map((folder) => join(folder, name))
    .find(isExecutable);
}

function isExecutable(path: string): boolean {
  try {
    accessSync(path, constants.X_OK);
    return true;
  } catch {
    return false;
  }
}

export interface ProgramResult {
  exitCode: number;
  stdout: string;
  stderr: string;
}

/** Runs a program to its end, at most `timeoutMs` (60 s). Does not throw for an exit code. */
export function runProgram(
  file: string,
  args: readonly string[],
  options: { timeoutMs?: number; cwd?: string; env?: NodeJS.ProcessEnv } = {},
): Promise<ProgramResult> {
  return new Promise((resolve) => {
    execFile(
      file,
      args,
      {
        timeout: options.timeoutMs ?? 60_000,
        killSignal: "SIGKILL",
        maxBuffer: 64 * 1024 * 1024,
        ...(options.cwd === undefined ? {} : { cwd: options.cwd }),
        ...(options.env === undefined ? {} : { env: options.env }),
      },
      (error: ExecFileException | null, stdout, stderr) => {
        const exitCode = error === null ? 0 : typeof error.code === "number" ? error.code : -1;
        resolve({
          exitCode,
          stdout,
          stderr: exitCode === -1 && error ? `${error.message}\n${stderr}` : stderr,
        });
      },
    );
  });
}

/** Runs a program that must succeed. @throws Error with what it wrote to stderr. */
export async function mustRun(...parameters: Parameters<typeof runProgram>): Promise<ProgramResult> {
  const result = await runProgram(...parameters);
  if (result.exitCode === 0) return result;
  const [file, args] = parameters;
  throw new Error(`${file} ${args.join(" ")}: exit code ${result.exitCode}: ${result.stderr.trim()}`);
}
