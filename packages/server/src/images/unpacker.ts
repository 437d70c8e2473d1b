import { type ChildProcess, execFile, type StdioOptions, spawn } from "node:child_process";
import { once } from "node:events";
import { Readable } from "node:stream";
import { pipeline } from "node:stream/promises";
import { fileURLToPath } from "node:url";
import { errorCodes } from "@alcove/wire";
import { messageOf } from "../platform/message-of.ts";
import { spawned } from "../platform/spawned.ts";
import { DomainError, ProviderError } from "../ports/errors.ts";
import type { Unpacked, UnpackJob } from "./unpack-layers.ts";
import type { UnpackMessage } from "./unpack-process.ts";

const program = fileURLToPath(new URL("./unpack-process.ts", import.meta.url));
const heapMb = 256;
const keptText = 4_096;
/** What a rooted service's unpacking may still do: give files their owners, and go where these keep others out. */
const setpriv = "/usr/bin/setpriv";
const bounded = ["--no-new-privs", "--bounding-set=-all,+chown,+dac_override,+fowner"];

/**
 * Unpacks in a process of its own: what a hostile image costs in memory and time is not the service's, and as root it
 * has only the rights that writing files takes. An abort kills it.
 * @param source the tar of a job of kind `tar`.
 * @throws what `unpack` throws; ProviderError when the process died.
 */
export async function unpackApart(
  job: UnpackJob,
  options: { source?: AsyncIterable<Uint8Array>; signal: AbortSignal; onBytes: (bytes: number) => void },
): Promise<Unpacked> {
  options.signal.throwIfAborted();
  const child = await start(options).catch((cause: unknown) => {
    options.signal.throwIfAborted();
    throw new ProviderError(`unpacking could not be started: ${messageOf(cause)}`, { cause });
  });
  const stop = () => child.kill("SIGKILL");
  options.signal.addEventListener("abort", stop, { once: true });
  let stderr = "";
  child.stderr?.setEncoding("utf8").on("data", (text: string) => {
    stderr = (stderr + text).slice(-keptText);
  });
  const last = Promise.withResolvers<UnpackMessage | undefined>();
  child.on("message", (message: UnpackMessage) => {
    if (message.kind === "bytes") options.onBytes(message.bytes);
    else last.resolve(message);
  });
  child.on("error", (error) => last.reject(new ProviderError("unpacking failed", { cause: error })));
  child.on("exit", () => last.resolve(undefined));
  try {
    child.send(job, () => undefined);
    const [message] = await Promise.all([last.promise, feed(child, options.source, last.promise)]);
    options.signal.throwIfAborted();
    if (message === undefined || message.kind === "bytes")
      throw new ProviderError(`unpacking ended without a result: ${stderr.trim() || "it was killed"}`);
    if (message.kind === "failed") throw rebuilt(message);
    const { skipped, digest } = message;
    return { skipped, ...(digest === undefined ? {} : { digest }) };
  } finally {
    options.signal.removeEventListener("abort", stop);
    stop();
    if (child.exitCode === null && child.signalCode === null) await once(child, "exit");
  }
}

async function start({ signal }: { signal: AbortSignal }): Promise<ChildProcess> {
  const node = [process.execPath, `--max-old-space-size=${heapMb}`, "--no-warnings", program];
  const command = (await canBound()) ? [setpriv, ...bounded, ...node] : node;
  const stdio: StdioOptions = ["pipe", "ignore", "pipe", "ipc"];
  return spawned(
    spawn(command[0] ?? "", command.slice(1), {
      stdio,
      env: { PATH: process.env.PATH ?? "/usr/bin:/bin" },
    }),
    { signal },
  );
}

let boundable: Promise<boolean> | undefined;
/** Whether rights can be taken from a process here: a service that is not root has none, a container's root may not be let. */
function canBound(): Promise<boolean> {
  boundable ??= new Promise((resolve) => {
    if (process.getuid?.() !== 0) resolve(false);
    else execFile(setpriv, [...bounded, "true"], (error) => resolve(error === null));
  });
  return boundable;
}

/** Hands the source over; one that fails is the failure, an end of the process is told by the process. */
async function feed(
  child: ChildProcess,
  source: AsyncIterable<Uint8Array> | undefined,
  ended: Promise<unknown>,
): Promise<void> {
  const { stdin } = child;
  if (stdin === null) return;
  if (source === undefined) {
    stdin.on("error", () => undefined);
    stdin.end();
    return;
  }
  const over = Promise.withResolvers<void>();
  ended.then(() => over.resolve(), over.reject);
  let sourceFailed: unknown;
  async function* watched(from: AsyncIterable<Uint8Array>): AsyncGenerator<Uint8Array> {
    try {
      yield* from;
    } catch (error) {
      sourceFailed = error;
      throw error;
    }
  }
  const fed = pipeline(Readable.from(watched(source)), stdin).catch((error: unknown) => {
    // A pipe that broke because the process had read enough, or failed, is told by its last message.
    if (sourceFailed !== undefined) throw error;
  });
  await Promise.race([fed, over.promise]);
}

function rebuilt(message: { code: string; message: string }): Error {
  const code = errorCodes.find((known) => known === message.code);
  return code === undefined ? new ProviderError(message.message) : new DomainError(code, message.message);
}
