import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { basename, join } from "node:path";
import { silentLogger } from "../../src/platform/logger.ts";
import { type ImageStore, NotFound, type StoredImage } from "../../src/ports/index.ts";
import { NativeProvider, type NativeProviderConfig } from "../../src/providers/native/index.ts";
import type { MachineMemory } from "../../src/providers/native/uncounted-memory.ts";
import { agentBinary } from "./agent-binary.ts";
import { busyboxRootfs } from "./tiny-images.ts";

/** The image of tests: busybox alone. */
export const testImage = "busybox:test";

const defaults: NativeProviderConfig = {
  defaultImage: "host",
  networkMode: "none",
  networkAllow: [],
  networkConnections: 512,
  networkMbit: 200,
  uidBase: 1_879_048_192,
  pidsLimit: 512,
  diskMb: 256,
  minFreeMb: 0,
  maxUncountedPercent: 0,
  addedCaps: [],
  prepared: 0,
};

/** Image stores of one root file system each, for tests. */
export function imagesOf(name: string, rootfs: string): ImageStore {
  const image: StoredImage = {
    name,
    digest: "sha256:0",
    rootfs,
    sizeBytes: 0,
    createdAt: new Date(0),
    config: { env: {} },
  };
  return {
    resolve: async (wanted) => {
      if (wanted !== name)
        throw new NotFound(`image ${wanted} is not stored; alcove image pull ${wanted} gets it`);
      return image;
    },
    list: async () => [image],
  };
}

/** In place of the machine's own. */
interface Given {
  launcher?: string;
  machineMemory?: () => Promise<MachineMemory>;
}

/** A place for providers of one test file, with the busybox image. */
export interface NativeHome {
  dataDir: string;
  open(change?: Partial<NativeProviderConfig>, given?: Given): NativeProvider;
  remove(): Promise<void>;
}

export async function nativeHome(): Promise<NativeHome> {
  const dataDir = await mkdtemp(join(tmpdir(), "alcove-native-"));
  // Tests that change their user bring a copy that belongs to it.
  const rootfs = process.env.ALCOVE_TEST_ROOTFS ?? (await busyboxRootfs()).dir;
  return {
    dataDir,
    open: (change, given) => nativeProvider(dataDir, rootfs, change, given),
    remove: async () => {
      await destroyAll(nativeProvider(dataDir, rootfs));
      await rm(dataDir, { recursive: true, force: true });
    },
  };
}

/** Sandboxes outlive the service: what a test left running ends here. */
async function destroyAll(provider: NativeProvider): Promise<void> {
  const options = { signal: AbortSignal.timeout(30_000) };
  for (const { runtimeId } of await provider.inventory(options)) await provider.destroy(runtimeId, options);
  await provider[Symbol.asyncDispose]();
}

export function nativeProvider(
  dataDir: string,
  rootfs: string,
  change: Partial<NativeProviderConfig> = {},
  given: Given = {},
): NativeProvider {
  return new NativeProvider({
    config: { ...defaults, ...change },
    dataDir,
    // Its own for each place: providers of other test files close the group of cgroups that they share with nobody.
    instanceId: `test${basename(dataDir).slice(-6)}`,
    images: imagesOf(testImage, rootfs),
    agentBinary: agentBinary("alcove-agent"),
    launcherBinary: given.launcher ?? agentBinary("alcove-launch"),
    logger: silentLogger,
    ...(given.machineMemory && { machineMemory: given.machineMemory }),
  });
}
