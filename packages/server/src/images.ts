import { ImageDisk } from "./images/image-disk.ts";
import { ImageLibrary } from "./images/image-library.ts";
import type { Logger } from "./platform/logger.ts";

export type { ImageLibrary, ImageProgress, ImageWork } from "./images/image-library.ts";
export { hostImage, normaliseImageName } from "./images/image-name.ts";
export type { ImageConfig, StoredImage } from "./ports/image-store.ts";

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
}): Promise<ImageLibrary> {
  const disk = new ImageDisk({ dataDir: options.dataDir });
  await disk.open();
  return new ImageLibrary({
    disk,
    aliases: options.aliases,
    pullPolicy: options.pullPolicy,
    dockerSocket: options.dockerSocket || "unix:///var/run/docker.sock",
    logger: options.logger,
  });
}
