import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";
import { withoutDescriptors } from "../../../test/support/without-descriptors.ts";
import { diskUsage, spaceOf } from "./disk-space.ts";

let root: string;
beforeEach(async () => {
  root = await mkdtemp(join(tmpdir(), "alcove-du-"));
});
afterEach(async () => {
  vi.unstubAllEnvs();
  await rm(root, { recursive: true });
});

it("spaceOf() is no call of this thread, which a file system that hangs would hold up for everybody", async () => {
  const told = vi.fn();
  const asked = spaceOf(root).then(told);
  for (let turn = 0; turn < 20; turn += 1) await Promise.resolve();
  expect(told).not.toHaveBeenCalled();
  await asked;
  expect(told).toHaveBeenCalledWith(expect.objectContaining({ freeMb: expect.any(Number) }));
});

describe("diskUsage()", () => {
  it("fails by itself where there is no descriptor for its program", async () => {
    const counted = withoutDescriptors(() => diskUsage([root], { inodes: false }));
    await expect(counted).rejects.toMatchObject({ code: "EMFILE" });
  });

  it("counts all trees but those that take too long or are gone, wherever they stand", async () => {
    const du = `#!/bin/sh
for path; do
  case $path in
    -*|/gone) ;;
    /slow*) exec sleep 30 ;;
    *) printf '2048\\t%s\\n' "$path" ;;
  esac
done
exit 1
`;
    await writeFile(join(root, "du"), du, { mode: 0o755 });
    vi.stubEnv("PATH", `${root}:${process.env.PATH}`);
    const trees = ["/a", "/slow1", "/b", "/gone", "/slow2", "/c"];
    const usage = await diskUsage(trees, { inodes: false, allMs: 3_000, eachMs: 500 });
    expect([...usage]).toEqual([
      ["/a", 2],
      ["/b", 2],
      ["/c", 2],
    ]);
  });

  it("is ended by its signal", async () => {
    await writeFile(join(root, "du"), "#!/bin/sh\nexec sleep 30\n", { mode: 0o755 });
    vi.stubEnv("PATH", `${root}:${process.env.PATH}`);
    const reason = new Error("closing");
    const closing = new AbortController();
    const counting = diskUsage(["/a"], { inodes: false, signal: closing.signal });
    closing.abort(reason);
    await expect(counting).rejects.toBe(reason);
  });
});
