import type { Config } from "./config/config.ts";
import { ImageDisk } from "./images/image-disk.ts";
import { ImageLibrary, type ImageLimits } from "./images/image-library.ts";
import type { Logger } from "./platform/logger.ts";
import { type PullLimits, usualPulls } from "./pulls/pull-turns.ts";

export type { ImageLibrary, ImageProgress, ImageWork } from "./images/image-library.ts";
export { hostImage, normaliseImageName } from "./images/image-name.ts";
export { isDataDirLocked } from "./platform/data-dir-lock.ts";
export type { ImageConfig, StoredImage } from "./ports/image-store.ts";

const unlimited: ImageLimits = {
  maxUnpackedBytes: Number.MAX_SAFE_INTEGER,
  maxEntries: Number.MAX_SAFE_INTEGER / 8_192,
  keepFreeBytes: 0,
  maxStoredBytes: 0,
};

/** What bounds pulls, by the service itself and by the Docker Engine each. */
export function pullLimits({ images }: Pick<Config, "images">): PullLimits {
  return { most: images.maxPulls, timeoutMs: images.pullTimeoutMs };
}

/** What the image store takes from the configuration. */
export function imageSettings({ images, dataDir, providers }: Config) {
  return {
    dataDir,
    aliases: images.aliases,
    pullPolicy: images.pullPolicy,
    allowedRegistries: images.allowedRegistries,
    pulls: pullLimits({ images }),
    limits: {
      maxUnpackedBytes: images.maxUnpackedBytes,
      maxEntries: images.maxEntries,
      maxStoredBytes: images.maxStoredBytes,
      // Images give way before the guard of the disk looks for a sandbox to stop.
      keepFreeBytes: (providers.native.minFreeMb * 1.25 + 64) * 1_048_576,
    },
  };
}

/** Images that the configuration names: spawns may want them though nobody did for a while. */
export function configuredImages({ images, pool, providers }: Config): string[] {
  const defaults = [providers.native.defaultImage, providers.proot.defaultImage, pool.image];
  return [...defaults, ...Object.values(images.aliases)].filter((name) => name !== "");
}

/**
 * Opens the image store below `dataDir`, making it when there is none. Any number of processes may have it open at once.
 * @param options.dockerSocket where `docker:NAME` is imported from: unix:///path or tcp://host:port.
 */
export async function openImageStore(options: {
  dataDir: string;
  aliases: Readonly<Record<string, string>>;
  pullPolicy: "missing" | "never";
  logger: Logger;
  dockerSocket?: string;
  allowedRegistries?: readonly string[];
  limits?: Partial<ImageLimits>;
  pulls?: PullLimits;
}): Promise<ImageLibrary> {
  const disk = new ImageDisk({ dataDir: options.dataDir });
  await disk.open();
  return new ImageLibrary({
    disk,
    aliases: options.aliases,
    pullPolicy: options.pullPolicy,
    dockerSocket: options.dockerSocket || "unix:///var/run/docker.sock",
    allowedRegistries: options.allowedRegistries ?? ["*"],
    limits: { ...unlimited, ...options.limits },
    pulls: options.pulls ?? usualPulls,
    logger: options.logger,
  });
}
