import { spawn } from "node:child_process";
import { messageOf } from "../platform/message-of.ts";
import { spawned } from "../platform/spawned.ts";
import { ProviderError } from "../ports/errors.ts";

const keptText = 4_096;

/** A tar of a directory, the same for the same content: sorted, owners as numbers, one file system. */
export async function* tarOfDirectory(
  directory: string,
  options: { signal: AbortSignal },
): AsyncGenerator<Uint8Array> {
  const args = ["-C", directory, "--sort=name", "--numeric-owner", "--one-file-system", "--format=posix"];
  // Access times and the like change from one reading to the next.
  const pax = "--pax-option=exthdr.name=%d/PaxHeaders/%f,delete=atime,delete=ctime";
  const reading = spawn("tar", [...args, pax, "-cf", "-", "."], { stdio: ["ignore", "pipe", "pipe"] });
  const tar = await spawned(reading, options).catch((cause: unknown) => {
    options.signal.throwIfAborted();
    throw new ProviderError(`a directory is read with the program tar: ${messageOf(cause)}`, { cause });
  });
  const ended = Promise.withResolvers<number | null>();
  tar.on("error", ended.reject);
  tar.on("close", (code) => ended.resolve(code));
  let stderr = "";
  tar.stderr.setEncoding("utf8").on("data", (text: string) => {
    stderr = (stderr + text).slice(-keptText);
  });
  const stop = () => tar.kill("SIGKILL");
  options.signal.addEventListener("abort", stop, { once: true });
  try {
    yield* tar.stdout;
    const code = await ended.promise;
    options.signal.throwIfAborted();
    if (code !== 0) throw new ProviderError(`${directory} could not be read: ${stderr.trim()}`);
  } finally {
    stop();
    options.signal.removeEventListener("abort", stop);
  }
}
