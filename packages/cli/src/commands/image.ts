import type { ImageLibrary, ImageWork, StoredImage } from "@alcove/server/images";
import { parseDuration } from "@alcove/wire/light";
import { interruptSignal } from "../context.ts";
import { UsageError } from "../exit-codes.ts";
import { printJson } from "../terminal/output.ts";
import { Progress } from "../terminal/progress.ts";
import { table } from "../terminal/table.ts";
import { byteSize, elapsed, shortDuration } from "../terminal/text.ts";
import { loadLocalConfig } from "./load-config.ts";

const probeMs = 3_000;
const usualPruneMs = 168 * 3_600_000;
/** A spawn that is under way wanted its image not longer ago than this; uses are noted to the minute. */
const shortestPruneMs = 120_000;

export interface ImageFlags {
  config?: string;
  dataDir?: string;
  json?: boolean;
}

export async function imageList(flags: ImageFlags): Promise<void> {
  const store = await openStore(flags);
  using interrupt = interruptSignal();
  const images = await store.list({ signal: interrupt.signal });
  if (flags.json) printJson(images.map(imageJson));
  else if (images.length === 0) process.stderr.write("no images stored; `host` needs none\n");
  else process.stdout.write(imageTable(await withLastUse(store, images), Date.now()));
}

export async function imagePull(name: string, flags: ImageFlags): Promise<void> {
  await obtain(`pulling ${name}`, flags, (store, work) => store.pull(name, work));
}

export async function imageImport(source: string, name: string, flags: ImageFlags): Promise<void> {
  await obtain(`importing ${source}`, flags, (store, work) => store.importFrom(source, name, work));
}

export async function imageRemove(name: string, flags: ImageFlags): Promise<void> {
  const store = await openStore(flags);
  using interrupt = interruptSignal();
  await store.remove(name, { signal: interrupt.signal });
  if (flags.json) printJson({ removed: name });
  else process.stdout.write(`${name}\n`);
}

/** Without `yes` it only tells what would go. */
export async function imagePrune(flags: ImageFlags & { olderThan?: string; yes?: boolean }): Promise<void> {
  const olderMs = flags.olderThan === undefined ? usualPruneMs : parseDuration(flags.olderThan);
  if (olderMs === undefined || olderMs < 0)
    throw new UsageError(`--older-than ${flags.olderThan}: expected a duration such as 168h`);
  const { config } = await loadLocalConfig(flags);
  const { configuredImages } = await import("@alcove/server/images");
  const store = await openStore(flags);
  using interrupt = interruptSignal();
  const dryRun = flags.yes !== true;
  const pruned = await store.prune({
    before: new Date(Date.now() - Math.max(olderMs, shortestPruneMs)),
    keep: configuredImages(config),
    dryRun,
    signal: interrupt.signal,
  });
  const bytes = pruned.reduce((all, { sizeBytes }) => all + sizeBytes, 0);
  if (flags.json)
    return printJson({
      removed: dryRun ? [] : pruned.map(({ name }) => name),
      would_remove: dryRun ? pruned.map(({ name }) => name) : [],
      size_bytes: bytes,
    });
  process.stdout.write(pruned.map(({ name }) => `${name}\n`).join(""));
  if (pruned.length === 0) process.stderr.write("nothing to remove\n");
  else if (dryRun) process.stderr.write(`${byteSize(bytes)} would be freed; --yes removes them\n`);
  else process.stderr.write(`${byteSize(bytes)} freed\n`);
}

async function obtain(
  label: string,
  flags: ImageFlags,
  get: (store: ImageLibrary, work: ImageWork) => Promise<StoredImage>,
): Promise<void> {
  const store = await openStore(flags);
  using interrupt = interruptSignal();
  using progress = new Progress(label, { quiet: flags.json === true });
  const image = await get(store, {
    signal: interrupt.signal,
    onProgress: ({ message, bytes }) =>
      progress.update(bytes === undefined ? message : `${message}, ${byteSize(bytes)}`),
  });
  if (flags.json) {
    printJson(imageJson(image));
    return;
  }
  progress.done(`${label}: ${byteSize(image.sizeBytes)}, ${elapsed(progress.elapsedMs)}`);
  process.stdout.write(`${image.name}\n`);
  await tellWhere(flags);
}

/** Images belong to a data directory: one beside that of a service that runs is a mistake, as a rule. */
async function tellWhere(flags: ImageFlags): Promise<void> {
  const { config } = await loadLocalConfig(flags);
  const { isDataDirLocked } = await import("@alcove/server/images");
  process.stderr.write(`alcove: stored below ${config.dataDir}\n`);
  if (isDataDirLocked(config.dataDir)) return;
  const url = process.env.ALCOVE_URL || "http://127.0.0.1:7423";
  if (await answersAt(url)) {
    process.stderr.write(
      `alcove: the service at ${url} uses another data directory and does not see this image; name its directory with --data-dir\n`,
    );
  }
}

async function answersAt(url: string): Promise<boolean> {
  if (!URL.canParse(url)) return false;
  const live = new URL("/api/v1/live", url);
  return fetch(live, { signal: AbortSignal.timeout(probeMs) }).then(
    async (response) => (await response.text()).includes('"alive"'),
    () => false,
  );
}

async function openStore(flags: ImageFlags): Promise<ImageLibrary> {
  const { config } = await loadLocalConfig(flags);
  const [{ imageSettings, openImageStore }, { createLogger }] = await Promise.all([
    import("@alcove/server/images"),
    import("@alcove/server/logger"),
  ]);
  return openImageStore({
    ...imageSettings(config),
    dockerSocket: config.providers.docker.socket,
    logger: await createLogger({ level: "warn", format: config.logging.format }),
  });
}

function withLastUse(store: ImageLibrary, images: readonly StoredImage[]) {
  return Promise.all(images.map(async (image) => ({ ...image, usedAt: await store.lastUsed(image) })));
}

function imageTable(images: readonly (StoredImage & { usedAt: Date })[], nowMs: number): string {
  return table(
    ["NAME", "DIGEST", "SIZE", "AGE", "WANTED"],
    images.map((image) => [
      image.name,
      image.digest.slice(0, 19),
      byteSize(image.sizeBytes),
      shortDuration(nowMs - image.createdAt.getTime()),
      `${shortDuration(nowMs - image.usedAt.getTime())} ago`,
    ]),
  );
}

function imageJson(image: StoredImage): Record<string, unknown> {
  return {
    name: image.name,
    digest: image.digest,
    size_bytes: image.sizeBytes,
    created_at: image.createdAt.toISOString(),
    config: image.config,
  };
}
