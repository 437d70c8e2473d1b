import { mkdir, mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { expect, it } from "vitest";
import { silentLogger } from "../../platform/logger.ts";
import type { RuntimeId } from "../../ports/index.ts";
import { DiskGuard } from "./disk-guard.ts";

async function guarded(minFreeMb: number): Promise<string[]> {
  const root = await mkdtemp(join(tmpdir(), "alcove-guard-"));
  try {
    const runtimes = ["rt-small", "rt-large"] as RuntimeId[];
    for (const id of runtimes) await mkdir(join(root, id));
    await writeFile(join(root, "rt-large", "file"), Buffer.alloc(3 << 20, 1));
    const stopped: string[] = [];
    await using guard = new DiskGuard({
      root,
      minFreeMb,
      logger: silentLogger,
      running: () => runtimes,
      path: (id) => join(root, id),
      stop: async (id, reason) => {
        stopped.push(`${id} ${reason}`);
      },
    });
    await guard.look();
    return stopped;
  } finally {
    await rm(root, { recursive: true });
  }
}

it("the largest writer is stopped, with the numbers in the reason, when space is short", async () => {
  const [first, ...more] = await guarded(2 ** 40);
  expect(first).toMatch(/^rt-large stopped: it had written 3 MB and \d+ MB were free.*min_free_mb$/);
  expect(more).toEqual([]);
});

it("nobody is stopped while there is space", async () => {
  expect(await guarded(1)).toEqual([]);
});
