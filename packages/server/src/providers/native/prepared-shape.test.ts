import { readFileSync } from "node:fs";
import { expect, it } from "vitest";
import { isOfPrograms } from "./prepared-shape.ts";

const launcher = new URL("../../../../../agent/alcove-launch/src/inside.rs", import.meta.url);

it("what is mounted where the launcher shows the machine's programs counts, and nothing else", () => {
  const [, listed = ""] =
    /PROGRAM_DIRS: \[&str; \d+\] = \[([^\]]+)\]/.exec(readFileSync(launcher, "utf8")) ?? [];
  const shown = [...listed.matchAll(/"([^"]+)"/g)].map(([, dir]) => `/${dir}`);
  expect(shown).toContain("/usr");
  const mountedAt = (place: string) => `36 25 0:31 / ${place} rw,relatime shared:1 - ext4 /dev/sda1 rw`;
  for (const dir of shown)
    for (const place of [dir, `${dir}/below`])
      expect([place, isOfPrograms(mountedAt(place))]).toEqual([place, true]);
  for (const place of ["/", "/home", "/usrlocal", "/srv/usr"])
    expect([place, isOfPrograms(mountedAt(place))]).toEqual([place, false]);
});
