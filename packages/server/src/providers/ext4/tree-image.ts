import { lstat, open, opendir, rename, rm, truncate, writeFile } from "node:fs/promises";
import { dirname, join } from "node:path";
import { freeBytes } from "../../platform/free-space.ts";
import { orMissing } from "../../platform/missing.ts";
import { ProviderError } from "../../ports/errors.ts";
import { full, isFull, runTool } from "./run-tool.ts";

const blockBytes = 4096;
/** What groups of blocks need for themselves, beside inodes and contents. It costs nothing where it stays unwritten. */
const slackBlocks = 4096;

/** A file of the host that an image gets beside its tree, in a folder of its own in the root. */
export interface AddedFile {
  from: string;
  folder: string;
  name: string;
  mode: number;
}

/**
 * Makes an ext4 image of a directory tree and a further file, without mounting anything. It is meant to be read only: it has
 * no journal and hardly any room. It appears whole or not at all.
 * @param options.signal ends the programs that make it.
 * @throws StorageFull; ProviderError when the tree has what is added already, or a program fails; the signal's reason.
 */
export async function makeTreeImage(
  path: string,
  options: {
    tree: string;
    added: AddedFile;
    mkfs: string;
    debugfs: string;
    about: string;
    draft: string;
    signal: AbortSignal;
  },
): Promise<void> {
  const { tree, added, about, draft, signal } = options;
  const commands = `${draft}.commands`;
  try {
    if ((await orMissing(lstat(join(tree, added.folder)), undefined)) !== undefined)
      throw new ProviderError(
        `${about}: the image has /${added.folder} itself, which is a name of Alcove's own`,
      );
    const { size } = await lstat(added.from);
    const { blocks, inodes } = await measureTree(tree, { signal });
    const wanted = blocks + Math.ceil(size / blockBytes) + Math.ceil((inodes * 256) / blockBytes);
    await (await open(draft, "wx", 0o600)).close();
    await truncate(draft, (Math.ceil(wanted * 1.05) + slackBlocks) * blockBytes);
    await runTool(
      options.mkfs,
      [
        ...[
          "-q",
          "-F",
          "-O",
          "^has_journal,^resize_inode,sparse_super2",
          "-b",
          String(blockBytes),
          "-m",
          "0",
        ],
        ...[
          "-N",
          String(inodes + 64),
          "-E",
          "lazy_itable_init=1,nodiscard,root_owner=0:0",
          "-d",
          tree,
          draft,
        ],
      ],
      { about, signal },
    );
    const target = `/${added.folder}/${added.name}`;
    const lines = [
      "rmdir /lost+found",
      `mkdir /${added.folder}`,
      `write "${added.from.replaceAll('"', '""')}" ${target}`,
      ...["uid 0", "gid 0", `mode 0${(0o100000 | added.mode).toString(8)}`].map(
        (field) => `sif ${target} ${field}`,
      ),
      `stat ${target}`,
    ];
    await writeFile(commands, `${lines.join("\n")}\n`, { mode: 0o600 });
    const said = await runTool(options.debugfs, ["-w", "-f", commands, draft], { about, signal });
    // It ends with 0 whatever failed; what it shows of the file at the end tells.
    if (!new RegExp(`Mode: +0?${added.mode.toString(8)}\\b`).test(said) || !said.includes(`Size: ${size}`))
      throw freeBytes(dirname(draft)) < size
        ? full(about, said)
        : new ProviderError(`${about}: debugfs failed`, { cause: said });
    await settle(draft, about);
    await rename(draft, path);
  } finally {
    await rm(draft, { force: true });
    await rm(commands, { force: true });
  }
}

/** What is left to be written may still find the disk full. */
async function settle(draft: string, about: string): Promise<void> {
  try {
    await using handle = await open(draft, "r+");
    await handle.sync();
    await handle.chmod(0o444);
  } catch (error) {
    if (error instanceof Error && isFull(error.message)) throw full(about, error);
    throw error;
  }
}

/** Blocks of the contents, and names, of a tree; files with several names are counted once. */
async function measureTree(
  tree: string,
  { signal }: { signal: AbortSignal },
): Promise<{ blocks: number; inodes: number }> {
  const seen = new Set<number>();
  let [blocks, inodes] = [1, 1];
  for await (const entry of await opendir(tree, { recursive: true, bufferSize: 512 })) {
    signal.throwIfAborted();
    const { ino, nlink, size } = await lstat(join(entry.parentPath, entry.name));
    if (nlink > 1 && !entry.isDirectory()) {
      if (seen.has(ino)) continue;
      seen.add(ino);
    }
    inodes += 1;
    if (entry.isFile() || entry.isDirectory() || entry.isSymbolicLink())
      blocks += Math.ceil(size / blockBytes);
  }
  return { blocks, inodes };
}
