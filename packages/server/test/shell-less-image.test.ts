import { copyFile, mkdir, mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import path from "node:path";
import { afterAll, describe, expect, it } from "vitest";
import { randomIds } from "../src/platform/random-ids.ts";
import { argv, run, shell, soon } from "../src/ports/contract/provider/harness.ts";
import type { RuntimeProvider } from "../src/ports/index.ts";
import { sharedEngine } from "./support/docker-engine.ts";
import { openDocker } from "./support/docker-provider.ts";
import { nativeProvider, testImage } from "./support/native.ts";
import { nativeMissing } from "./support/native-factory.ts";
import { findProgram, mustRun } from "./support/programs.ts";
import { firstMissing } from "./support/requirements.ts";
import { importImage } from "./support/tiny-images.ts";

/** One program, as images have that were made from scratch. Those of `firecracker` are in its own tests. */
async function shellLessRootfs(): Promise<string> {
  const rootfs = await mkdtemp(path.join(tmpdir(), "alcove-shell-less-"));
  await mkdir(path.join(rootfs, "app"));
  // Which of its programs busybox is, its name says.
  await copyFile(findProgram("busybox") ?? "", path.join(rootfs, "app/echo"));
  return rootfs;
}

async function provesItself(provider: RuntimeProvider, image: string): Promise<void> {
  const spec = { sandboxId: randomIds.sandboxId(), runtimeId: randomIds.runtimeId() };
  const limits = { memoryMb: 128, vcpus: 1, env: {}, metadata: {}, expiresInMs: 600_000 };
  await provider.spawn({ ...spec, ...limits, image }, soon(30_000));
  try {
    const operations = provider.sandbox(spec.runtimeId);
    expect(await run(operations, argv("/app/echo", "hello"))).toMatchObject({
      stdout: "hello\n",
      exit: { exitCode: 0 },
    });
    const asked = await run(operations, shell("echo never"));
    expect([asked.exit.exitCode, asked.stdout]).toEqual([127, ""]);
    expect(asked.stderr).not.toBe("");
    await operations.files.mkdir("/workspace/a", { ...soon(), parents: true });
    expect(
      (await operations.files.list("/workspace", { ...soon(), depth: 1 })).map(({ name }) => name),
    ).toEqual(["a"]);
  } finally {
    await provider.destroy(spec.runtimeId, soon(30_000));
  }
}

const folders: string[] = [];
afterAll(async () => {
  for (const folder of folders) await rm(folder, { recursive: true, force: true });
});

const noNative = await nativeMissing();
const { skip: noDocker } = await firstMissing(["docker", "agent", "busybox"]);
const titled = (name: string, skip: string | undefined) =>
  skip === undefined ? name : `${name} (skipped: ${skip})`;

describe("an image without a shell runs its programs, says 127 to a command line, and has files", () => {
  it.skipIf(noNative !== undefined)(titled("native", noNative), { timeout: 60_000 }, async () => {
    const [rootfs, dataDir] = [await shellLessRootfs(), await mkdtemp(path.join(tmpdir(), "alcove-native-"))];
    folders.push(rootfs, dataDir);
    await using provider = nativeProvider(dataDir, rootfs);
    await provesItself(provider, testImage);
  });

  it.skipIf(noDocker !== undefined)(titled("docker", noDocker), { timeout: 60_000 }, async () => {
    const rootfs = await shellLessRootfs();
    folders.push(rootfs, `${rootfs}.tar`);
    await mustRun("tar", ["-C", rootfs, "-cf", `${rootfs}.tar`, "."]);
    const engine = await sharedEngine();
    await importImage(engine, `${rootfs}.tar`, "alcove-test/shell-less:1");
    const docker = await openDocker(engine);
    try {
      await provesItself(docker.provider, "alcove-test/shell-less:1");
    } finally {
      await docker.close();
    }
  });
});
