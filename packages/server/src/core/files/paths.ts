import { posix } from "node:path";
import { BadRequest } from "../../ports/errors.ts";

const maxPathBytes = 4_096;
/** Where commands start; what a user of the pool has, and its paths begin at. */
export const workspace = "/workspace";

/**
 * Checks that a path is one inside a sandbox: absolute, free of NUL, UTF-8, at most 4,096 bytes. What it leads to is for the
 * sandbox to find out. @throws BadRequest naming `field`.
 */
export function checkPath(field: string, path: string): string {
  if (path === "") throw new BadRequest(`${field} must be given`);
  if (!path.isWellFormed())
    throw new BadRequest(`${field} is not UTF-8, which names must be to be asked for`);
  if (path.includes("\0")) throw new BadRequest(`${field} must not hold a NUL character`);
  if (Buffer.byteLength(path) > maxPathBytes)
    throw new BadRequest(`${field} is longer than ${maxPathBytes} bytes`);
  if (!path.startsWith("/"))
    throw new BadRequest(`${field} ${JSON.stringify(path.slice(0, 200))} must be an absolute path`);
  return path;
}

/** Without it no command starts, and a directory that takes its place has another mode. @throws BadRequest naming `field`. */
export function keepWorkspace(field: string, path: string): void {
  if (posix.resolve("/", path) !== workspace) return;
  throw new BadRequest(
    `${field} leads to ${workspace}, where commands start: it is neither removed, moved nor replaced; what is in it may be`,
  );
}

/** Reads an octal mode such as `755` or `0644`. @throws BadRequest naming `field`. */
export function parseMode(field: string, text: string): number {
  if (!/^(?:0o)?[0-7]{1,5}$/.test(text) || Number.parseInt(text.replace("0o", ""), 8) > 0o7777)
    throw new BadRequest(
      `${field} ${JSON.stringify(text.slice(0, 32))} must be an octal mode such as 755 or 0644`,
    );
  return Number.parseInt(text.replace("0o", ""), 8);
}

/** Writes permission bits as clients read them: `0644`. docs/api/files.md. */
export function formatMode(mode: number): string {
  return `0${(mode & 0o7777).toString(8).padStart(3, "0")}`;
}
