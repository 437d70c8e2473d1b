import { existsSync, statSync } from "node:fs";
import { expect, test } from "vitest";
import { sharedEngine } from "./docker-engine.ts";
import { mustRun } from "./programs.ts";
import { describeWith } from "./requirements.ts";
import { busyboxRootfs, importBusybox } from "./tiny-images.ts";

await describeWith(["busybox"], "busyboxRootfs()", () => {
  test("makes a folder with a shell and a tar of it", async () => {
    const { dir, tar } = await busyboxRootfs();
    expect(existsSync(`${dir}/bin/busybox`)).toBe(true);
    expect(statSync(tar).size).toBeGreaterThan(100_000);
    expect(statSync(`${dir}/tmp`).mode & 0o7777).toBe(0o1777);
  });
});

await describeWith(["docker", "busybox"], "the tests' own Docker Engine", () => {
  test("answers and takes the tiny image", async () => {
    const engine = await sharedEngine();
    await importBusybox(engine);
    const { stdout } = await mustRun("docker", ["-H", engine.socket, "images", "-q", "alcove-test/busybox"]);
    expect(stdout.trim()).not.toBe("");
  });
});
