import { realpathSync, statSync } from "node:fs";

/** A directory or file, recognised by more than its name. A copy differs, a move does not. */
export interface FileIdentity {
  path: string;
  device: string;
  inode: string;
  /** When it was made, nanoseconds; "0" where the file system does not say. */
  born: string;
}

export function identifyFile(name: string): FileIdentity {
  const { dev, ino, birthtimeNs, ctimeNs } = statSync(name, { bigint: true });
  // Where a file system keeps no time of birth, Node may give that of the last change instead.
  const born = birthtimeNs === ctimeNs ? 0n : birthtimeNs;
  return {
    path: realpathSync(name),
    device: String(dev),
    inode: String(ino),
    born: String(born),
  };
}

/** A device's number changes with a new mount, so the path counts instead: a copy in the very same place has another inode. */
export function sameFile(before: FileIdentity, now: FileIdentity): boolean {
  if (before.inode !== now.inode) return false;
  if (before.born !== "0" && now.born !== "0" && before.born !== now.born) return false;
  return before.device === now.device || before.path === now.path;
}

/** Whether what was there at its path is there still. */
export function isStillThere(before: FileIdentity): boolean {
  try {
    return sameFile(before, identifyFile(before.path));
  } catch {
    return false;
  }
}

export function isFileIdentity(value: unknown): value is FileIdentity {
  const { path, device, inode, born } = (value ?? {}) as Partial<FileIdentity>;
  return [path, device, inode, born].every((field) => typeof field === "string");
}
