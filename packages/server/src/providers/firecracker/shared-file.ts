import { chmod, link, mkdir, rename, stat } from "node:fs/promises";
import { basename, join } from "node:path";
import { exists } from "../../platform/missing.ts";
import type { CallOptions } from "../../ports/index.ts";
import { runTool } from "../ext4/index.ts";

/** Copies of the operator's files, such as kernels, which jails get a name of: one for each version of a file. */
export class SharedFiles {
  readonly #folder: string;

  constructor(options: { folder: string }) {
    this.#folder = options.folder;
  }

  /** Gives a file another name, that of a copy which everybody may read. @throws StorageFull; ProviderError. */
  async link(from: string, to: string, options: CallOptions): Promise<void> {
    const { size, mtimeMs, ino } = await stat(from);
    const copy = join(this.#folder, `${basename(from)}-${ino}-${size}-${Math.floor(mtimeMs)}`);
    if (!(await exists(copy))) {
      await mkdir(this.#folder, { recursive: true, mode: 0o700 });
      const draft = `${copy}.${basename(to)}.${process.hrtime.bigint()}`;
      const about = `a copy of ${basename(from)} for jails cannot be made`;
      await runTool("cp", ["--reflink=auto", "--", from, draft], { about, ...options });
      await chmod(draft, 0o444);
      await rename(draft, copy);
    }
    await link(copy, to);
  }
}
