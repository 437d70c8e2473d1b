import fs from "node:fs";
import os from "node:os";
import path from "node:path";
import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { openImageStore } from "../images.ts";
import { silentLogger } from "../platform/logger.ts";

let folder: string;

beforeEach(() => {
  folder = fs.mkdtempSync(path.join(os.tmpdir(), "alcove-looks-"));
});

afterEach(() => {
  vi.unstubAllEnvs();
  fs.rmSync(folder, { recursive: true });
});

/** @returns how many of what each line begins (`+`) and ends (`-`) there were at most at once, and in all. */
function atOnce(log: string): { most: number; all: number } {
  let most = 0;
  let now = 0;
  let all = 0;
  for (const line of fs.readFileSync(log, "utf8").trim().split("\n")) {
    now += line === "+" ? 1 : -1;
    if (line === "+") all += 1;
    most = Math.max(most, now);
  }
  return { most, all };
}

test.each([
  ["that cannot pull", 1, "is not stored; get it with: alcove image pull"],
  ["that can", 0, "is not stored and could not be pulled"],
])(
  "spawns of images that nobody has start no more programs at once than pulls may, with one %s",
  async (_what, exitCode, message) => {
    const log = path.join(folder, "log");
    const skopeo = `#!/bin/sh
echo + >> ${log}
sleep 0.05
echo - >> ${log}
[ "$1" = --version ] || exit 1
exit ${exitCode}
`;
    fs.writeFileSync(path.join(folder, "skopeo"), skopeo, { mode: 0o755 });
    vi.stubEnv("PATH", `${folder}:${process.env.PATH}`);
    const pulls = { most: 2, timeoutMs: 60_000 };
    const options = { aliases: {}, pullPolicy: "missing", logger: silentLogger, pulls } as const;
    const store = await openImageStore({ dataDir: path.join(folder, "data"), ...options });
    const signal = AbortSignal.timeout(60_000);
    const named = (n: number) =>
      store.resolve(`203.0.113.${n % 10}/none:1`, { owner: `owner-${n % 3}`, signal });
    const outcomes = await Promise.allSettled(Array.from({ length: 30 }, (_, n) => named(n)));
    for (const outcome of outcomes)
      expect(outcome).toMatchObject({
        status: "rejected",
        reason: { code: "not_found", message: expect.stringContaining(message) },
      });
    expect(atOnce(log).most).toBeLessThanOrEqual(pulls.most);
    expect(atOnce(log).all).toBeLessThan(30);
  },
);
