import { createReadStream, statSync } from "node:fs";
import { tarEnd, tarHeader } from "../../packages/server/src/platform/tar/tar-writer.ts";

/** What a package holds at one path. */
export type Entry = { path: string } & (
  | { type: "dir" }
  | { type: "symlink"; target: string }
  | { type: "file"; mode: number; content: Buffer }
  /** Read when it is written: some are large. */
  | { type: "file"; mode: number; source: string }
);

const block = 512;

/** The folders that lead to the entries, and the entries, each once and in one order whatever order they came in. */
export function withFolders(entries: readonly Entry[]): Entry[] {
  const all = new Map<string, Entry>();
  for (const entry of entries) {
    const parts = entry.path.split("/");
    for (let depth = 1; depth < parts.length; depth++) {
      const folder = parts.slice(0, depth).join("/");
      all.set(folder, { path: folder, type: "dir" });
    }
  }
  for (const entry of entries) {
    const known = all.get(entry.path);
    if (known !== undefined && (known.type !== "dir" || entry.type !== "dir"))
      throw new Error(`the package would hold ${entry.path} twice`);
    all.set(entry.path, entry);
  }
  return [...all.values()].sort((a, b) => (a.path < b.path ? -1 : a.path > b.path ? 1 : 0));
}

/**
 * A tar of the entries in their order: everything root's, one time for all, no more rights than needed, so that the same
 * entries give the same bytes.
 */
export async function* tarOf(entries: readonly Entry[], mtime: Date): AsyncGenerator<Buffer> {
  for (const entry of entries) {
    switch (entry.type) {
      case "dir":
        yield tarHeader({ name: entry.path, type: "dir", mode: 0o755, size: 0, mtime });
        break;
      case "symlink":
        yield tarHeader({
          name: entry.path,
          type: "symlink",
          mode: 0o777,
          size: 0,
          linkTarget: entry.target,
          mtime,
        });
        break;
      case "file": {
        const size = "content" in entry ? entry.content.length : statSync(entry.source).size;
        yield tarHeader({ name: entry.path, type: "file", mode: entry.mode, size, mtime });
        if ("content" in entry) yield entry.content;
        else yield* bytesOf(entry.source, size);
        if (size % block !== 0) yield Buffer.alloc(block - (size % block));
        break;
      }
      default:
        entry satisfies never;
    }
  }
  yield tarEnd;
}

async function* bytesOf(file: string, size: number): AsyncGenerator<Buffer> {
  let read = 0;
  for await (const chunk of createReadStream(file, { highWaterMark: 1_048_576 })) {
    read += (chunk as Buffer).length;
    yield chunk as Buffer;
  }
  if (read !== size) throw new Error(`${file} changed while it was packed`);
}
