import { lutimesSync } from "node:fs";
import { mkdir, mkdtemp, readdir, rm, symlink } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, expect, it } from "vitest";
import { Unavailable } from "../../ports/index.ts";
import { IdRanges, idsPerSandbox } from "./id-ranges.ts";
import { RangeClaims } from "./range-claims.ts";

const base = 1_879_048_192;
const folders: string[] = [];

afterEach(async () => {
  for (const folder of folders.splice(0)) await rm(folder, { recursive: true, force: true });
});

it("two runtimes never hold the same range, and one keeps its own", async () => {
  const ranges = new IdRanges({ base, offset: 4_095 });
  const first = await ranges.take("rt-1");
  expect(first).toBe(base + 4_095 * idsPerSandbox);
  expect(await ranges.take("rt-1")).toBe(first);
  expect(await ranges.take("rt-2")).toBe(base);
});

it("a range found in a record is not given away until its runtime is removed", async () => {
  const ranges = new IdRanges({ base, offset: 0 });
  await ranges.restore(base, "rt-old");
  expect(await ranges.take("rt-new")).toBe(base + idsPerSandbox);
  await ranges.release("rt-old");
  const others = await Promise.all(Array.from({ length: 4_095 }, (_, index) => ranges.take(`rt-${index}`)));
  expect(others).toContain(base);
});

it("ten thousand runtimes have ranges that neither meet nor leave the ids there are", async () => {
  const ranges = new IdRanges({ base, offset: 77 });
  const bases = await Promise.all(Array.from({ length: 10_000 }, (_, index) => ranges.take(`rt-${index}`)));
  expect(new Set(bases).size).toBe(10_000);
  expect(Math.max(...bases) + idsPerSandbox).toBeLessThan(2 ** 32 - 1);
  const few = new IdRanges({ base: 0xfffd_0000, offset: 0 });
  await few.take("rt-1");
  await few.take("rt-2");
  await expect(few.take("rt-3")).rejects.toThrow(Unavailable);
});

it("two services of one machine never use one range, wherever they begin", async () => {
  const folder = await mkdtemp(join(tmpdir(), "alcove-claims-"));
  folders.push(folder);
  const service = (name: string) =>
    new IdRanges({
      base,
      offset: 0,
      claims: RangeClaims.open({ dir: join(folder, "claims"), runtimes: join(folder, name) }),
    });
  const [one, other] = [service("one"), service("other")];
  const taken = await Promise.all([
    one.take("rt-1"),
    other.take("rt-1"),
    one.take("rt-2"),
    other.take("rt-2"),
  ]);
  expect(new Set(taken).size).toBe(4);
  await one.release("rt-1");
  expect(await service("third").take("rt-1")).toBe(taken[0]);
});

it("a claim counts as long as its runtime is there", async () => {
  const folder = await mkdtemp(join(tmpdir(), "alcove-claims-"));
  folders.push(folder);
  const dir = join(folder, "claims");
  const runtimes = join(folder, "one");
  const claims = RangeClaims.open({ dir, runtimes });
  const others = RangeClaims.open({ dir, runtimes: join(folder, "other") });
  await mkdir(join(runtimes, "rt-kept"), { recursive: true });
  for (const [index, id] of ["rt-kept", "rt-gone"].entries()) {
    await claims?.claim(base + index * idsPerSandbox, id);
    // As if made long ago.
    lutimesSync(join(dir, String(base + index * idsPerSandbox)), 1, 1);
  }
  expect(await others?.claim(base, "rt-1")).toBe(false);
  expect(await others?.claim(base + idsPerSandbox, "rt-1")).toBe(true);
  await others?.release(base + idsPerSandbox, "rt-1");
  await claims?.release(base, "rt-kept");
  expect(await readdir(dir)).toEqual([]);
});

it("claims go on when their folder was taken away", async () => {
  const folder = await mkdtemp(join(tmpdir(), "alcove-claims-"));
  folders.push(folder);
  const claims = RangeClaims.open({ dir: join(folder, "claims"), runtimes: join(folder, "one") });
  expect(await claims?.claim(base, "rt-1")).toBe(true);
  await rm(join(folder, "claims"), { recursive: true });
  expect(await claims?.claim(base, "rt-2")).toBe(true);
  expect(await claims?.claim(base, "rt-3")).toBe(false);
});

it("a launch beside a service with hundreds of sandboxes tries few of their ranges", async () => {
  const folder = await mkdtemp(join(tmpdir(), "alcove-claims-"));
  folders.push(folder);
  const dir = join(folder, "claims");
  const claimsOf = (name: string) => RangeClaims.open({ dir, runtimes: join(folder, name) });
  const other = claimsOf("other");
  for (let n = 0; n < 300; n += 1) await other?.claim(base + n * idsPerSandbox, `rt-${n}`);
  const claims = claimsOf("one");
  if (claims === undefined) throw new Error("no claims");
  let tried = 0;
  const counted = Object.assign(Object.create(claims) as RangeClaims, {
    listed: () => claims.listed(),
    claim: (first: number, id: string) => {
      tried += 1;
      return claims.claim(first, id);
    },
  });
  const ranges = new IdRanges({ base, offset: 0, claims: counted });
  expect(await ranges.take("rt-1")).toBe(base + 300 * idsPerSandbox);
  expect(tried).toBeLessThan(5);
});

it("a range that is given on is told of as its new owner's, and free with that one's end alone", async () => {
  const folder = await mkdtemp(join(tmpdir(), "alcove-claims-"));
  folders.push(folder);
  const [dir, runtimes] = [join(folder, "claims"), join(folder, "runtimes")];
  const ranges = new IdRanges({ base, offset: 0, claims: RangeClaims.open({ dir, runtimes }) });
  await ranges.take("prepared-1");
  const told = { link: join(dir, String(base)), target: join(runtimes, "rt-1") };
  expect(ranges.give("prepared-1", "rt-1")).toEqual(told);
  await ranges.release("prepared-1");
  expect(await ranges.take("rt-1")).toBe(base);
  expect(ranges.give("rt-none", "rt-2")).toBeNull();
});

it.each([
  ["prepared-1", "rt-1"],
  ["rt-1", "prepared-1"],
])("a range whose gift came to nothing is free once neither has it: %s goes first", async (first, last) => {
  const ranges = new IdRanges({ base, offset: 0 });
  await ranges.take("prepared-1");
  ranges.give("prepared-1", "rt-1");
  ranges.doubt("prepared-1", "rt-1");
  await ranges.release(first);
  expect(ranges.has(first)).toBe(false);
  // It is made anew, while what ends slowly has its ids still.
  expect(await ranges.take(first)).not.toBe(base);
  expect(await ranges.take(last)).toBe(base);
  await ranges.release(last);
  const all = await Promise.all(Array.from({ length: 4_095 }, (_, one) => ranges.take(`rt-other-${one}`)));
  expect(all).toContain(base);
});

it.each(["prepared-1", "rt-1"])(
  "a range whose gift came to nothing leaves no claim, whoever has it by then: %s",
  async (told) => {
    const folder = await mkdtemp(join(tmpdir(), "alcove-claims-"));
    folders.push(folder);
    const claims = RangeClaims.open({ dir: join(folder, "claims"), runtimes: join(folder, "runtimes") });
    const ranges = new IdRanges({ base, offset: 0, claims });
    await ranges.take("prepared-1");
    const link = ranges.give("prepared-1", "rt-1")?.link ?? "";
    // As who tells it leaves them when it ends between its calls.
    await rm(link);
    await symlink(join(folder, "runtimes", told), link);
    await symlink(join(folder, "runtimes", told), `${link}.new`);
    ranges.doubt("prepared-1", "rt-1");
    await ranges.release("prepared-1");
    await ranges.release("rt-1");
    expect(await readdir(join(folder, "claims"))).toEqual([]);
    expect(await new IdRanges({ base, offset: 0, claims }).take("rt-2")).toBe(base);
  },
);
