import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { expect, it } from "vitest";
import { usualMemoryIn } from "./usual-memory.ts";

it("is remembered until the machine is started anew, and nothing else is taken for it", async () => {
  const folder = await mkdtemp(join(tmpdir(), "alcove-usual-"));
  try {
    const file = join(folder, ".usual-memory");
    const usual = usualMemoryIn(file);
    expect(await usual.read()).toBeUndefined();
    await usual.write(300.4);
    expect(await usualMemoryIn(file).read()).toBe(300);
    for (const text of ["", "another-boot 300\n", "x"]) {
      await writeFile(file, text);
      expect(await usual.read()).toBeUndefined();
    }
  } finally {
    await rm(folder, { recursive: true });
  }
});
