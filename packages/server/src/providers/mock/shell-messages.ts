/** What the service and a shell worker say to each other. Both ends are ours; guests never see a message. */

/** File system calls a shell makes; the file systems live with the service, so that a worker holds no state. */
export const fileSystemCalls = [
  "readFile",
  "readFileBytes",
  "readFileBuffer",
  "writeFile",
  "appendFile",
  "exists",
  "stat",
  "lstat",
  "mkdir",
  "readdir",
  "readdirWithFileTypes",
  "rm",
  "cp",
  "mv",
  "chmod",
  "symlink",
  "link",
  "readlink",
  "realpath",
  "utimes",
] as const;
export type FileSystemCall = (typeof fileSystemCalls)[number];

/**
 * Files that stand for a command's own streams: writing the first two writes its output, reading `line` waits for one
 * line of its input, reading `stdin` for all that is left of it until it is closed.
 */
export const streamPaths = {
  stdout: "/dev/.stdout",
  stderr: "/dev/.stderr",
  /** Standard output of a command that writes bytes, one for each character. */
  bytes: "/dev/.bytes",
  stdin: "/dev/.stdin",
  line: "/dev/.line",
} as const;

export interface ShellUser {
  name: string;
  uid: number;
  gid: number;
}

export type ToShell =
  | {
      type: "run";
      run: number;
      script: string;
      stdin: boolean;
      user: ShellUser;
      cwd: string;
      env: Record<string, string>;
    }
  | { type: "abort"; run: number }
  | { type: "answer"; call: number; value?: unknown; error?: string };

export type FromShell =
  | { type: "ready" }
  | { type: "call"; run: number; call: number; op: FileSystemCall; args: unknown[] }
  | { type: "done"; run: number; exitCode: number; stdout: string; stderr: string; failed?: string };

/** Runs one worker may hold at once: as many as the abort flags it shares with the service. */
export const runsPerWorker = 64;
