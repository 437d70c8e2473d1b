import { parentPort, workerData } from "node:worker_threads";
import { Bash, defineCommand, type IFileSystem, parse, serialize } from "just-bash";
import { rewrite } from "./rewrite.ts";
import {
  type FileSystemCall,
  type FromShell,
  type ShellUser,
  streamPaths,
  type ToShell,
} from "./shell-messages.ts";

/**
 * The program of a shell worker: runs scripts in simulated shells. Its file systems are calls to the service, so nothing
 * is lost when a runaway forces the service to terminate it. `aborts` is shared memory with one flag per run: an endless
 * loop lets no messages in, but looks at its signal's `aborted` between statements.
 */
const port = parentPort;
if (port === null) throw new Error("shell-worker.ts runs as a worker thread only");
const aborts = new Int32Array((workerData as { aborts: SharedArrayBuffer }).aborts);
const post = (message: FromShell) => port.postMessage(message);

let lastCall = 0;
const calls = new Map<number, PromiseWithResolvers<unknown>>();
const running = new Map<number, AbortController>();

/** What the service answers is what the file system there returned; `T` is what that call returns. */
function ask<T>(run: number, op: FileSystemCall, args: unknown[]): Promise<T> {
  lastCall += 1;
  const answer = Promise.withResolvers<unknown>();
  calls.set(lastCall, answer);
  post({ type: "call", run, call: lastCall, op, args });
  return answer.promise as Promise<T>;
}

/**
 * The file system of one run. A redirection makes three calls and most commands write to one stream at most, so what can
 * be answered here about the files that stand for streams is.
 */
function remoteFileSystem(run: number): IFileSystem {
  const isStream = (target: string) => streams.has(target);
  return {
    readFile: (...args) => ask(run, "readFile", args),
    readFileBytes: (...args) => ask(run, "readFileBytes", args),
    readFileBuffer: (...args) => ask(run, "readFileBuffer", args),
    writeFile: async (...args) => {
      if (!isStream(args[0]) || args[1].length > 0) await ask(run, "writeFile", args);
    },
    appendFile: async (...args) => {
      if (!isStream(args[0]) || args[1].length > 0) await ask(run, "appendFile", args);
    },
    exists: async (target) => isStream(target) || (await ask(run, "exists", [target])),
    stat: async (target) => (isStream(target) ? streamStat : await ask(run, "stat", [target])),
    lstat: async (target) => (isStream(target) ? streamStat : await ask(run, "lstat", [target])),
    mkdir: (...args) => ask(run, "mkdir", args),
    readdir: (...args) => ask(run, "readdir", args),
    readdirWithFileTypes: (...args) => ask(run, "readdirWithFileTypes", args),
    rm: (...args) => ask(run, "rm", args),
    cp: (...args) => ask(run, "cp", args),
    mv: (...args) => ask(run, "mv", args),
    chmod: (...args) => ask(run, "chmod", args),
    symlink: (...args) => ask(run, "symlink", args),
    link: (...args) => ask(run, "link", args),
    readlink: (...args) => ask(run, "readlink", args),
    realpath: (...args) => ask(run, "realpath", args),
    utimes: (...args) => ask(run, "utimes", args),
    resolvePath,
    getAllPaths: () => [],
  };
}

function resolvePath(base: string, path: string): string {
  const parts: string[] = [];
  for (const part of (path.startsWith("/") ? path : `${base}/${path}`).split("/")) {
    if (part === "..") parts.pop();
    else if (part !== "" && part !== ".") parts.push(part);
  }
  return `/${parts.join("/")}`;
}

const streams = new Set<string>(Object.values(streamPaths));
const streamStat = {
  isFile: true,
  isDirectory: false,
  isSymbolicLink: false,
  mode: 0o666,
  size: 0,
  mtime: new Date(0),
};
const unlimited = 1e12;
const yesBytes = 32 * 1_048_576;
const text = (stdout: string, exitCode = 0) => ({ stdout, stderr: "", exitCode });
/** Programs beyond those of the simulated shell. */
const commandsFor = (user: ShellUser) => [
  defineCommand("id", async (args) => {
    if (args[0] === "-u" || args[0] === "-un")
      return text(`${args.join(" ").includes("n") ? user.name : user.uid}\n`);
    if (args[0] === "-g") return text(`${user.gid}\n`);
    return text(`uid=${user.uid}(${user.name}) gid=${user.gid} groups=${user.gid}\n`);
  }),
  defineCommand("whoami", async () => text(`${user.name}\n`)),
  defineCommand("uname", async (args) =>
    text(args.includes("-a") ? "Linux mock 6.0.0 #1 mock\n" : args.includes("-m") ? "mock\n" : "Linux\n"),
  ),
  defineCommand("nproc", async () => text("1\n")),
  // A real one ends when its pipe does; this one cannot know, so it ends by itself.
  defineCommand("yes", async (args) => {
    const line = `${args.join(" ") || "y"}\n`;
    return { ...text(line.repeat(Math.ceil(yesBytes / line.length))), stdoutKind: "bytes" as const };
  }),
  defineCommand("sync", async () => text("")),
];

/** A script that cannot be parsed is left as it is: the shell says what is wrong with it. */
function prepared(script: string, stdin: boolean): string {
  try {
    return serialize(rewrite(parse(script), { stdin }));
  } catch {
    return script;
  }
}

async function run(message: Extract<ToShell, { type: "run" }>): Promise<void> {
  const controller = new AbortController();
  // A plain read: the shell's defence keeps Atomics from everything that runs inside of an execution.
  const isAborted = () => aborts[message.run] === 1;
  Object.defineProperty(controller.signal, "aborted", { get: isAborted });
  running.set(message.run, controller);
  try {
    const shell = new Bash({
      fs: remoteFileSystem(message.run),
      cwd: message.cwd,
      env: message.env,
      customCommands: commandsFor(message.user),
      executionLimits: {
        maxCommandCount: unlimited,
        maxLoopIterations: unlimited,
        maxWorkUnits: unlimited,
        maxOutputSize: unlimited,
        maxExecutionTimeMs: Number.POSITIVE_INFINITY,
      },
    });
    const result = await shell.exec(prepared(message.script, message.stdin), {
      rawScript: true,
      signal: controller.signal,
    });
    post({
      type: "done",
      run: message.run,
      exitCode: result.exitCode,
      stdout: result.stdout,
      stderr: result.stderr,
    });
  } catch (error) {
    const failed = error instanceof Error ? error.message : String(error);
    post({ type: "done", run: message.run, exitCode: 126, stdout: "", stderr: "", failed });
  } finally {
    running.delete(message.run);
  }
}

port.on("message", (message: ToShell) => {
  switch (message.type) {
    case "run":
      void run(message);
      return;
    case "abort":
      running.get(message.run)?.abort();
      return;
    case "answer": {
      const answer = calls.get(message.call);
      calls.delete(message.call);
      if (message.error === undefined) answer?.resolve(message.value);
      else answer?.reject(new Error(message.error));
      return;
    }
    default:
      message satisfies never;
  }
});
post({ type: "ready" });
