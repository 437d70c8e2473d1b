import { Forbidden } from "./errors.ts";
import type { CallOptions } from "./sandbox-operations.ts";

/** Root file systems for the providers without an engine of their own, shared read-only between sandboxes. */
export interface ImageStore {
  /**
   * Applies aliases; a name that comes out as `host` gives a record of that name whose rootfs does not exist: the
   * machine's own root is made by the provider.
   * @param options.owner for whom; pulls of several owners take turns.
   * @throws NotFound when no such image is stored, naming the command that gets it; BadRequest for what is no name.
   */
  resolve(name: string, options: CallOptions & { owner?: string | undefined }): Promise<StoredImage>;
  list(options: CallOptions): Promise<StoredImage[]>;
}

export interface StoredImage {
  /** Name and tag as asked for, after aliases: `debian:12`. */
  name: string;
  /** Content address of the root file system. */
  digest: string;
  /** Absolute host path of the root file system. */
  rootfs: string;
  sizeBytes: number;
  createdAt: Date;
  config: ImageConfig;
}

/** What of an image's configuration applies: ENV, USER and WORKDIR; ENTRYPOINT and CMD are not run. */
export interface ImageConfig {
  env: Readonly<Record<string, string>>;
  user?: string;
  workdir?: string;
}

/** The registry an image name leads to, as its first part says: `docker.io` when it says none. */
export function registryOf(name: string): string {
  const first = name.slice(0, Math.max(0, name.indexOf("/")));
  // As those who pull read it: capitals make a host of it too.
  return /[.:A-Z]/.test(first) || first === "localhost" ? first : "docker.io";
}

/** @throws Forbidden for a registry that `images.allowed_registries` does not name. */
export function refuseRegistry(name: string, allowed: readonly string[]): void {
  const registry = registryOf(name);
  if (allowed.includes("*") || allowed.includes(registry)) return;
  throw new Forbidden(
    `image "${name}" would come from ${registry}, which is none of images.allowed_registries (${allowed.join(", ") || "none"})`,
  );
}
