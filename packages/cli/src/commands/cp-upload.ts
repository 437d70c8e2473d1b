import { type FileHandle, open, stat } from "node:fs/promises";
import path from "node:path";
import type { Readable } from "node:stream";
import { pipeline } from "node:stream/promises";
import { type AlcoveClient, AlcoveError } from "@alcove/sdk";
import type { FileInfo } from "@alcove/wire";
import { UsageError } from "../exit-codes.ts";
import { Progress } from "../terminal/progress.ts";
import { elapsed } from "../terminal/text.ts";
import { Meter } from "./cp-meter.ts";
import { Remarks } from "./cp-remarks.ts";

interface CopyOptions {
  recursive: boolean;
  quiet: boolean;
  signal: AbortSignal;
}

/** Copies a file, standard input (`-`) or with `recursive` a directory into a sandbox. */
export async function upload(
  client: AlcoveClient,
  source: string,
  target: { id: string; path: string },
  options: CopyOptions,
): Promise<void> {
  if (source === "-")
    return uploadFile(client, { body: process.stdin, name: "standard input" }, target, options);
  const info = await stat(source);
  const there = await statInside(client, target, options.signal);
  const name = path.basename(path.resolve(source));
  // As in cp: into a directory that exists, or that the trailing slash says is one.
  const into = there?.is_dir === true || (target.path.endsWith("/") && !info.isDirectory());
  const contentsOnly = /(^|\/)\.$/.test(source);
  const finalPath = into && !contentsOnly ? path.posix.join(target.path, name) : target.path;
  if (info.isDirectory()) {
    if (!options.recursive) throw new UsageError(`${source} is a directory: copy it with -r`);
    if (there !== undefined && !there.is_dir)
      throw new UsageError(`${target.id}:${target.path} is not a directory`);
    return uploadDirectory(client, source, { ...target, path: finalPath }, options);
  }
  await using file: FileHandle = await open(source);
  return await uploadFile(
    client,
    {
      body: file.createReadStream({ autoClose: false }),
      name: source,
      mode: (info.mode & 0o777).toString(8).padStart(4, "0"),
      // A device or a FIFO says nothing about how much it will give.
      ...(info.isFile() ? { length: info.size } : {}),
    },
    { ...target, path: finalPath },
    options,
  );
}

async function uploadFile(
  client: AlcoveClient,
  source: { body: Readable; name: string; mode?: string; length?: number },
  target: { id: string; path: string },
  options: CopyOptions,
): Promise<void> {
  using progress = new Progress(`copying ${source.name}`, { quiet: options.quiet });
  const meter = new Meter(progress, source.length);
  const read = pipeline(source.body, meter);
  // The upload reports a broken connection; a file that cannot be read breaks the upload off.
  read.catch((error: unknown) => meter.destroy(error instanceof Error ? error : new Error(String(error))));
  await client.files.write(target.id, target.path, meter, {
    signal: options.signal,
    ...(source.mode === undefined ? {} : { mode: source.mode }),
  });
  await read;
  finish(progress, meter, `${source.name} → ${target.id}:${target.path}`, options);
}

async function uploadDirectory(
  client: AlcoveClient,
  source: string,
  target: { id: string; path: string },
  options: CopyOptions,
): Promise<void> {
  const { create } = await import("tar");
  using progress = new Progress(`copying ${source}`, { quiet: options.quiet });
  const meter = new Meter(progress);
  const remarks = new Remarks();
  const pack = create(
    {
      cwd: source,
      portable: true,
      // The library takes nothing else, and says nothing.
      filter: (name, entry) => {
        const taken = !("isFile" in entry) || entry.isFile() || entry.isDirectory() || entry.isSymbolicLink();
        if (!taken)
          remarks.add(`${path.join(source, name)}: left out: neither a file nor a directory nor a link`);
        return taken;
      },
    },
    ["."],
  );
  const packed = pipeline(pack, meter);
  // The upload reports a broken connection; a file that cannot be read breaks the archive off.
  packed.catch((error: unknown) => meter.destroy(error instanceof Error ? error : new Error(String(error))));
  try {
    await client.files.writeArchive(target.id, target.path, meter, { signal: options.signal });
    await packed;
  } finally {
    remarks.tell();
  }
  finish(progress, meter, `${source} → ${target.id}:${target.path}`, options);
}

export function finish(progress: Progress, meter: Meter, what: string, options: { quiet: boolean }): void {
  if (!options.quiet) progress.done(`${what}: ${meter.summary()}, ${elapsed(progress.elapsedMs)}`);
}

export async function statInside(
  client: AlcoveClient,
  place: { id: string; path: string },
  signal: AbortSignal,
): Promise<FileInfo | undefined> {
  try {
    return await client.files.stat(place.id, place.path, { signal });
  } catch (error) {
    // A sandbox that is not there is told apart by the copy itself.
    if (error instanceof AlcoveError && error.code === "not_found") return undefined;
    throw error;
  }
}
