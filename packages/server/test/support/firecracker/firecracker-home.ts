import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { basename, join } from "node:path";
import { silentLogger } from "../../../src/platform/logger.ts";
import type { ImageStore } from "../../../src/ports/index.ts";
import {
  type FirecrackerConfig,
  FirecrackerProvider,
  type FirecrackerProviderOptions,
} from "../../../src/providers/firecracker/index.ts";
import { agentBinary } from "../agent-binary.ts";
import { imagesOf } from "../native.ts";
import { guestKernel } from "../qemu-guest.ts";
import { busyboxRootfs } from "../tiny-images.ts";
import type { Behaviour } from "./behaviour.ts";
import { fakeFirecracker } from "./fake-binary.ts";

/** The image of tests: busybox alone. */
export const testImage = "busybox:test";

type Change = Partial<Omit<FirecrackerProviderOptions, "config">> & { config?: Partial<FirecrackerConfig> };

/** A place for providers of one test file, with a fake Firecracker and the busybox image. */
export interface FirecrackerHome {
  readonly dataDir: string;
  open(change?: Change): FirecrackerProvider;
  behave(change: Partial<Behaviour>): void;
  remove(): Promise<void>;
}

export async function firecrackerHome(
  guest: Behaviour["guest"],
  options: { rootfs?: string; jailed?: boolean } = {},
): Promise<FirecrackerHome> {
  const dataDir = await mkdtemp(join(tmpdir(), "alcove-fc-"));
  const kernel = guest === "qemu" ? await guestKernel() : undefined;
  const fake = fakeFirecracker(join(dataDir, "fake"), { guest, ...(kernel === undefined ? {} : { kernel }) });
  const kvm = join(dataDir, "fake", "kvm");
  await writeFile(kvm, "");
  const rootfs = options.rootfs ?? (await busyboxRootfs()).dir;
  const open = (change: Change = {}) => {
    const { config, ...others } = change;
    return new FirecrackerProvider({
      config: {
        defaultImage: testImage,
        firecrackerPath: fake.path,
        jailerPath: options.jailed ? fake.jailer : "",
        jailUidBase: 1_878_982_656,
        kernelPath: fake.kernel,
        initrdPath: "",
        dataDir: "",
        network: [],
        networkMbit: 0,
        diskRateMb: 0,
        snapshots: false,
        diskMb: 128,
        minFreeMb: 0,
        pidsLimit: 512,
        ...config,
      },
      dataDir,
      instanceId: `test${basename(dataDir).slice(-6)}`,
      agentBinary: agentBinary("alcove-agent"),
      images: imagesOf(testImage, rootfs) satisfies ImageStore,
      logger: silentLogger,
      patience: { bootMs: guest === "qemu" ? 120_000 : 30_000, openMs: 20_000, restoreMs: 90_000 },
      kvm,
      interfaces: join(dataDir, "fake"),
      guests: guest === "qemu" ? "machines" : "processes",
      ...others,
    });
  };
  return {
    dataDir,
    open,
    behave: fake.behave,
    remove: async () => {
      await destroyAll(open());
      await rm(dataDir, { recursive: true, force: true });
    },
  };
}

/** Machines outlive the service: what a test left running ends here. */
async function destroyAll(provider: FirecrackerProvider): Promise<void> {
  const options = { signal: AbortSignal.timeout(30_000) };
  for (const { runtimeId } of await provider.inventory(options)) await provider.destroy(runtimeId, options);
  await provider[Symbol.asyncDispose]();
}
