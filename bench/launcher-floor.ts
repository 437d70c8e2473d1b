import { execFile } from "node:child_process";
import { randomBytes } from "node:crypto";
import { mkdir, mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import path from "node:path";
import { promisify } from "node:util";
import { silentLogger } from "../packages/server/src/platform/logger.ts";
import type { RuntimeId, RuntimeSpec, SandboxId } from "../packages/server/src/ports/index.ts";
import { Launcher, type LaunchSpec } from "../packages/server/src/providers/launcher/index.ts";
import { readyDisks } from "../packages/server/src/providers/native/disk-template.ts";
import { diskFor, idsFor, type LaunchGround } from "../packages/server/src/providers/native/launch-ground.ts";
import {
  type NativeProviderConfig,
  newLaunchSpec,
  newRecord,
} from "../packages/server/src/providers/native/launch-plan.ts";
import { LaunchSite } from "../packages/server/src/providers/native/launch-site.ts";
import { projectRoot } from "./service.ts";

const run = promisify(execFile);
const built = (program: string) => path.join(projectRoot, "agent", "dist", program);

/** As the service's defaults; nothing is made ahead, and nobody is stopped. */
const config: NativeProviderConfig = {
  defaultImage: "host",
  networkMode: "none",
  networkAllow: [],
  networkConnections: 512,
  networkMbit: 200,
  uidBase: 1_979_711_488,
  pidsLimit: 512,
  diskMb: 10_240,
  minFreeMb: 0,
  maxUncountedPercent: 0,
  addedCaps: [],
  prepared: 0,
};

/** The launcher as the service uses it, with a program in place of the agent that ends at once: no service, nobody who talks to an agent. */
export interface LauncherFloor extends AsyncDisposable {
  /** Launches so many at once, and removes them. @returns milliseconds until each was there. */
  launch(count: number): Promise<number[]>;
}

/** @throws Error where there is no C compiler, or no static C library. */
export async function launcherFloor(): Promise<LauncherFloor> {
  await using stack = new AsyncDisposableStack();
  const folder = await mkdtemp(path.join(tmpdir(), "alcove-bench-launcher-"));
  stack.defer(() => rm(folder, { recursive: true, force: true, maxRetries: 3 }));
  const instanceId = randomBytes(16).toString("hex");
  const site = stack.use(
    new LaunchSite({
      config,
      dataDir: folder,
      instanceId,
      agentBinary: await endsAtOnce(folder),
      launcherBinary: built("alcove-launch"),
      logger: silentLogger,
      refuseWhenShort: async () => undefined,
    }),
  );
  const ground = await site.readyToLaunch();
  const launcher = stack.use(new Launcher({ binary: built("alcove-launch"), logger: silentLogger }));
  if (ground.disks !== undefined) {
    const dir = path.join(folder, "layers");
    await mkdir(dir);
    launcher.keepDisks({ template: ground.disks.template, dir, count: readyDisks });
  }
  const owned = stack.move();
  let rounds = 0;
  return {
    launch: async (count) => {
      const names = Array.from({ length: count }, (_, index) => `rt-${rounds}-${index}` as RuntimeId);
      rounds += 1;
      // What is to be launched is known before the clock runs: that is the service's part.
      const specs = await Promise.all(names.map((name) => planned({ site, ground, instanceId }, name)));
      const started = performance.now();
      const launched = await Promise.allSettled(
        specs.map(async (spec) => {
          await launcher.launch(spec);
          return performance.now() - started;
        }),
      );
      // Also those of which one failed: their ids and groups are the machine's.
      await Promise.all(names.map((name) => site.remove(ground, name)));
      return launched.map((each) => {
        if (each.status === "rejected") throw each.reason;
        return each.value;
      });
    },
    [Symbol.asyncDispose]: () => owned.disposeAsync(),
  };
}

async function planned(
  { site, ground, instanceId }: { site: LaunchSite; ground: LaunchGround; instanceId: string },
  runtimeId: RuntimeId,
): Promise<LaunchSpec> {
  const root = { kind: "host", skeleton: ground.skeleton } as const;
  const spec: RuntimeSpec = {
    runtimeId,
    sandboxId: runtimeId as string as SandboxId,
    image: "host",
    memoryMb: 512,
    vcpus: 1,
    env: {},
    expiresInMs: null,
    metadata: {},
  };
  const record = newRecord(spec, {
    instanceId,
    root,
    ids: await idsFor(ground, runtimeId, root),
    cgroup: ground.cgroups?.spec(runtimeId) ?? null,
  });
  const disk = diskFor(ground, root);
  const dir = site.directories.path(runtimeId);
  const { agent } = ground;
  return newLaunchSpec(spec, {
    config,
    dir,
    record,
    agent,
    root,
    disk,
    procOutside: ground.ways.procOutside,
  });
}

/** `true`, but static, as the agent is. @returns its path. */
async function endsAtOnce(folder: string): Promise<string> {
  const source = path.join(folder, "true.c");
  const program = path.join(folder, "true");
  await writeFile(source, "int main(void) { return 0; }\n");
  await run("cc", ["-static", "-O2", "-o", program, source]);
  return program;
}
