import { spawn } from "node:child_process";
import { appendFile, chown, cp, mkdtemp, readFile, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { expect, it } from "vitest";
import { projectRoot } from "../../../test/support/agent-binary.ts";
import { type NativeHome, nativeHome, testImage } from "../../../test/support/native.ts";
import { describeWith, requirement } from "../../../test/support/requirements.ts";
import { busyboxRootfs } from "../../../test/support/tiny-images.ts";
import { providerContract } from "../../ports/contract/provider-contract.ts";

const unprivileged = 65_534;
const needs = ["linux", "agent", "launcher", "native-unprivileged", "busybox"] as const;

if (process.getuid?.() === 0) {
  await describeWith(needs, "native, unprivileged", () => {
    it("passes the provider contract as a user without rights", { timeout: 180_000 }, async () => {
      const { dir } = await busyboxRootfs();
      const home = await mkdtemp(join(tmpdir(), "alcove-nobody-"));
      try {
        // An unprivileged service's images belong to it.
        await cp(dir, join(home, "rootfs"), { recursive: true, verbatimSymlinks: true });
        await run("chown", ["-hR", `${unprivileged}:${unprivileged}`, home]);
        await chown(home, unprivileged, unprivileged);
        const id = String(unprivileged);
        const file = import.meta.filename.slice(projectRoot.length + 1);
        const vitest = `${projectRoot}/node_modules/vitest/vitest.mjs`;
        const { code, output } = await run(
          "setpriv",
          [
            "--reuid",
            id,
            "--regid",
            id,
            "--clear-groups",
            process.execPath,
            vitest,
            "run",
            file,
            "--cache=false",
            "--configLoader",
            "runner",
            "--reporter=default",
            "--reporter=./scripts/contract-reporter.mjs",
          ],
          {
            HOME: home,
            TMPDIR: home,
            ALCOVE_TEST_ROOTFS: join(home, "rootfs"),
            PATH: process.env.PATH,
            CI: process.env.CI,
            CONTRACT_RESULTS: join(home, "results"),
          },
        );
        const { CONTRACT_RESULTS: results } = process.env;
        if (results !== undefined) await appendFile(results, await readFile(join(home, "results")));
        expect(code, output.slice(-6_000)).toBe(0);
        expect(output).not.toContain("skipped:");
      } finally {
        await rm(home, { recursive: true, force: true });
      }
    });
  });
} else {
  const missing = [];
  for (const name of needs) {
    const found = await requirement(name);
    if (!found.ok) missing.push(found.reason);
  }
  let home: NativeHome;
  providerContract("native, unprivileged", {
    ...(missing.length === 0 ? {} : { skip: missing.join("; ") }),
    create: async () => {
      home = await nativeHome();
      return {
        provider: home.open(),
        image: testImage,
        restart: async () => home.open(),
        close: () => home.remove(),
      };
    },
  });
}

function run(
  program: string,
  args: readonly string[],
  env?: Record<string, string | undefined>,
): Promise<{ code: number | null; output: string }> {
  const child = spawn(program, args, {
    cwd: projectRoot,
    stdio: ["ignore", "pipe", "pipe"],
    ...(env ? { env } : {}),
  });
  const parts: Buffer[] = [];
  for (const stream of [child.stdout, child.stderr]) stream.on("data", (part: Buffer) => parts.push(part));
  const { promise, resolve, reject } = Promise.withResolvers<{ code: number | null; output: string }>();
  child.once("error", reject);
  child.once("close", (code) => resolve({ code, output: Buffer.concat(parts).toString("utf8") }));
  return promise;
}
