import { createWriteStream } from "node:fs";
import { chmod, mkdir, readlink, realpath, rename, rm, stat } from "node:fs/promises";
import path from "node:path";
import { pipeline } from "node:stream/promises";
import type { AlcoveClient } from "@alcove/sdk";
import { UsageError } from "../exit-codes.ts";
import { Progress } from "../terminal/progress.ts";
import { Meter } from "./cp-meter.ts";
import { Remarks } from "./cp-remarks.ts";
import { finish, statInside } from "./cp-upload.ts";

interface CopyOptions {
  recursive: boolean;
  quiet: boolean;
  signal: AbortSignal;
}

/** Copies a file or with `recursive` a directory out of a sandbox, a file also to standard output (`-`). */
export async function download(
  client: AlcoveClient,
  source: { id: string; path: string },
  target: string,
  options: CopyOptions,
): Promise<void> {
  if (target === "-") return downloadToStdout(client, source, options);
  const info = await statInside(client, source, options.signal);
  const into = target.endsWith("/") || (await isDirectory(target));
  const name = path.posix.basename(source.path);
  const finalPath = into && name !== "" && name !== "." ? path.join(target, name) : target;
  if (info?.is_dir) {
    if (!options.recursive)
      throw new UsageError(`${source.id}:${source.path} is a directory: copy it with -r`);
    return downloadDirectory(client, source, finalPath, options);
  }
  return downloadFile(
    client,
    source,
    finalPath,
    info === undefined ? undefined : Number.parseInt(info.mode, 8),
    options,
  );
}

async function downloadToStdout(
  client: AlcoveClient,
  source: { id: string; path: string },
  options: CopyOptions,
): Promise<void> {
  const { body } = await client.files.read(source.id, source.path, { signal: options.signal });
  await pipeline(body, process.stdout, { end: false });
}

/** Appears under its name when it is complete; a device or a FIFO that has the name is written to. */
async function downloadFile(
  client: AlcoveClient,
  source: { id: string; path: string },
  target: string,
  mode: number | undefined,
  options: CopyOptions,
): Promise<void> {
  const place = await placeOf(target);
  using progress = new Progress(`copying ${source.path}`, { quiet: options.quiet });
  const { body, length } = await client.files.read(source.id, source.path, { signal: options.signal });
  const meter = new Meter(progress, length);
  const partial = place.isWrittenTo ? undefined : `${place.path}.alcove-${process.pid}`;
  try {
    await pipeline(body, meter, createWriteStream(partial ?? place.path, { flags: partial ? "wx" : "w" }));
    if (length !== undefined && meter.bytes !== length) {
      throw new Error(`${source.path}: the connection broke after ${meter.bytes} of ${length} bytes`);
    }
    if (partial !== undefined) {
      // Bits that would give rights to whoever runs it stay behind.
      if (mode !== undefined && Number.isInteger(mode)) await chmod(partial, mode & 0o777);
      await rename(partial, place.path);
    }
  } catch (error) {
    if (partial !== undefined) await rm(partial, { force: true });
    throw error;
  }
  finish(progress, meter, `${source.id}:${source.path} → ${target}`, options);
}

/**
 * Unpacks a tar that a sandbox had a hand in: `tar` refuses names that lead out of the target and writes through no
 * symlink; devices are left out and set-id bits are dropped.
 */
async function downloadDirectory(
  client: AlcoveClient,
  source: { id: string; path: string },
  target: string,
  options: CopyOptions,
): Promise<void> {
  const { extract } = await import("tar");
  using progress = new Progress(`copying ${source.path}`, { quiet: options.quiet });
  const body = await client.files.readArchive(source.id, source.path, { signal: options.signal });
  await mkdir(target, { recursive: true });
  const meter = new Meter(progress);
  const remarks = new Remarks();
  let whole = true;
  await pipeline(
    body,
    meter,
    extract({
      cwd: target,
      preserveOwner: false,
      strict: false,
      filter: (name, entry) => {
        if (!("type" in entry && "header" in entry)) return true;
        if (typeof entry.mode === "number") entry.mode &= 0o777;
        // The library would make it a link to another place, below its own directory.
        if (entry.type !== "SymbolicLink" || entry.linkpath?.startsWith("/") !== true) return true;
        remarks.add(`${name}: left out: a link to ${entry.linkpath}, which leads out`);
        return false;
      },
      onwarn: (code, message, data) => {
        // What would be written through a link is refused, as what leads out is; other errors are the system's.
        const refused = "code" in data && data.code === "TAR_SYMLINK_ERROR";
        if ((data instanceof Error && !refused) || code === "TAR_BAD_ARCHIVE") whole = false;
        const { entry } = data as { entry?: { path: string; type: string } };
        const what =
          code === "TAR_ENTRY_UNSUPPORTED" && entry
            ? `left out: a ${entry.type}`
            : `${code}: ${String(message)}`;
        remarks.add(`${entry?.path ?? source.path}: ${what}`);
      },
    }),
  );
  remarks.tell();
  if (!whole)
    throw new Error(
      `not all of ${source.id}:${source.path} could be written: what is in ${target} is incomplete`,
    );
  finish(progress, meter, `${source.id}:${source.path} → ${target}`, options);
}

/** As with cp: what a link leads to is meant, and `/dev/null` is to be there afterwards. @throws for a link that leads to nothing. */
async function placeOf(target: string): Promise<{ path: string; isWrittenTo: boolean }> {
  const there = await stat(target).catch((error: NodeJS.ErrnoException) => {
    if (error.code === "ENOENT") return undefined;
    throw error;
  });
  if (there === undefined) {
    const link = await readlink(target).catch(() => undefined);
    if (link !== undefined)
      throw new Error(`${target} is a link to ${link}, which is not there: nothing is written through it`);
    return { path: target, isWrittenTo: false };
  }
  if (!there.isFile()) return { path: target, isWrittenTo: true };
  return { path: await realpath(target), isWrittenTo: false };
}

async function isDirectory(target: string): Promise<boolean> {
  try {
    return (await stat(target)).isDirectory();
  } catch {
    return false;
  }
}
