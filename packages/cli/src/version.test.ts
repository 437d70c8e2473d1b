import { spawnSync } from "node:child_process";
import { expect, test } from "vitest";
import { version } from "./version.ts";

test("the version names the commit of a clone, as git does", () => {
  const { status, stdout } = spawnSync("git", ["rev-parse", "HEAD"], {
    cwd: import.meta.dirname,
    encoding: "utf8",
  });
  const commit = status === 0 ? ` (${stdout.slice(0, 12)})` : "";
  expect(version()).toMatch(/^\d+\.\d+\.\d+(?: \([0-9a-f]{12}\))?$/);
  if (status === 0) expect(version().endsWith(commit)).toBe(true);
});
