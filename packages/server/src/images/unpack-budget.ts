import { statfsSync } from "node:fs";
import { StorageFull, TooLarge } from "../ports/errors.ts";

export interface UnpackLimits {
  /** Bytes an image may unpack to. */
  maxUnpackedBytes: number;
  /** Files, directories and links an image may unpack to. */
  maxEntries: number;
  /** The file system keeps this much free. */
  keepFreeBytes: number;
}

/** How much is written between two looks at the disk. */
const lookEveryBytes = 16 * 1_048_576;
const lookEveryEntries = 4_096;
/** A file system with fewer free inodes than this is full as far as images go; one that counts none has no limit. */
const keepFreeInodes = 10_000;

/** Counts what an image unpacks to. Each method throws TooLarge or StorageFull before the limit is passed. */
export class UnpackBudget {
  readonly #limits: UnpackLimits;
  readonly #directory: string;
  #bytes = 0;
  #entries = 0;
  #lookedAtBytes = 0;
  #lookedAtEntries = 0;

  /** @param options.directory lies on the file system that is written to. */
  constructor(options: { limits: UnpackLimits; directory: string }) {
    this.#limits = options.limits;
    this.#directory = options.directory;
    this.#look();
  }

  bytes(more: number): void {
    this.#bytes += more;
    const { maxUnpackedBytes } = this.#limits;
    if (this.#bytes > maxUnpackedBytes)
      throw new TooLarge(
        `the image unpacks to more than the ${maxUnpackedBytes} bytes of images.max_unpacked; raise it if it should`,
      );
    if (this.#bytes - this.#lookedAtBytes >= lookEveryBytes) this.#look();
  }

  entry(): void {
    this.#entries += 1;
    const { maxEntries } = this.#limits;
    if (this.#entries > maxEntries)
      throw new TooLarge(
        `the image holds more than the ${maxEntries} entries of images.max_entries; raise it if it should`,
      );
    if (this.#entries - this.#lookedAtEntries >= lookEveryEntries) this.#look();
  }

  #look(): void {
    this.#lookedAtBytes = this.#bytes;
    this.#lookedAtEntries = this.#entries;
    refuseWithoutSpace(this.#directory, this.#limits.keepFreeBytes);
  }
}

/** @throws StorageFull */
export function refuseWithoutSpace(directory: string, keepFreeBytes: number): void {
  const { bavail, bsize, files, ffree } = statfsSync(directory);
  if (bavail * bsize < keepFreeBytes)
    throw new StorageFull(
      `there is no room for images: ${Math.round((bavail * bsize) / 1_048_576)} MB are free below data_dir and ` +
        `${Math.round(keepFreeBytes / 1_048_576)} MB are kept free; remove images or sandboxes`,
    );
  if (files > 0 && ffree < keepFreeInodes)
    throw new StorageFull(
      `there is no room for images: ${ffree} inodes are free below data_dir; remove images or sandboxes`,
    );
}
