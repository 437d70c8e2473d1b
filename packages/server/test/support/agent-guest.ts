import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { silentLogger } from "../../src/platform/logger.ts";
import type { SandboxId, StoredImage } from "../../src/ports/index.ts";
import { AgentClient, storeAgent, unixDialer, vsockDialer } from "../../src/providers/agent/index.ts";
import { agentPort, bootArguments } from "../../src/providers/firecracker/boot-arguments.ts";
import { Layers } from "../../src/providers/firecracker/layer.ts";
import { RootfsImages } from "../../src/providers/firecracker/rootfs.ts";
import { agentBinary } from "./agent-binary.ts";
import { findProgram } from "./programs.ts";
import { bootGuest, guestKernel, type QemuGuest } from "./qemu-guest.ts";

const options = () => ({ signal: AbortSignal.timeout(30_000) });

/** The tools of e2fsprogs. @throws Error when the machine lacks them. */
export function ext4Programs(): { mkfs: string; debugfs: string } {
  const [mkfs, debugfs] = ["mkfs.ext4", "debugfs"].map(findProgram);
  if (mkfs === undefined || debugfs === undefined) throw new Error("e2fsprogs is missing");
  return { mkfs, debugfs };
}

/** A stored image as the image store gives it. */
export function storedImage(rootfs: string, digit = "1"): StoredImage {
  const digest = `sha256:${digit.repeat(64)}`;
  return { name: "tiny:latest", digest, rootfs, sizeBytes: 1, createdAt: new Date(), config: { env: {} } };
}

/** Disks of microVMs, made as the provider makes them, in a folder of their own. */
export async function guestDisks() {
  const folder = await mkdtemp(join(tmpdir(), "alcove-guest-"));
  const agent = await storeAgent({ dataDir: folder, binary: agentBinary("alcove-agent") });
  const programs = ext4Programs();
  const images = new RootfsImages({ folder: join(folder, "rootfs"), agent, programs });
  await images.open();
  const layers = new Layers({ folder: join(folder, "layers"), mkfs: programs.mkfs });
  let made = 0;
  return {
    folder,
    images,
    rootfs: (tree: string, digit?: string) => images.get(storedImage(tree, digit), options()),
    layer: async (sizeMb = 256) => {
      const path = join(folder, `layer-${made++}.img`);
      await layers.make(path, { sizeMb, ...options() });
      return path;
    },
    [Symbol.asyncDispose]: () => rm(folder, { recursive: true, force: true }),
  };
}

/** A guest that boots as a microVM does, and a client of the agent in it. */
export async function bootAgentGuest(given: {
  rootfs: string;
  layer: string | undefined;
  hostname?: string;
  memoryMb?: number;
  bootArguments?: string;
  /** As `bootGuest` takes it. */
  forwardTo?: number;
  from?: "to be saved" | { file: string };
}): Promise<QemuGuest & { client: AgentClient; configure(workdir?: string): Promise<void> }> {
  const { rootfs, layer, hostname = "box", memoryMb, forwardTo } = given;
  const guest = await bootGuest({
    ...(await guestKernel()),
    drives: layer === undefined ? [rootfs] : [rootfs, layer],
    bootArguments: given.bootArguments ?? bootArguments({ hostname, pids: 512 }),
    ...(memoryMb === undefined ? {} : { memoryMb }),
    ...(forwardTo === undefined ? {} : { forwardTo }),
    ...(given.from === undefined ? {} : { from: given.from }),
  });
  const client = new AgentClient({
    dial: vsockDialer(unixDialer(guest.vsockPath), agentPort),
    token: "0".repeat(64),
    name: "sb-guest",
    owner: "",
    groups: "own",
    logger: silentLogger,
  });
  return {
    ...guest,
    client,
    configure: async (workdir = "/workspace") => {
      const request = { sandboxId: "sb-abc123def456" as SandboxId, workdir, expiresInMs: null };
      const until = performance.now() + 60_000;
      for (;;) {
        try {
          // vhost-device-vsock may answer nobody any more once it was asked before its guest was there.
          if (given.from === undefined && !guest.console().includes("alcove-agent: version"))
            throw new Error("it has not begun");
          return await client.configure(request, options());
        } catch (error) {
          if (performance.now() > until)
            throw new Error(`the guest does not answer: ${guest.console().slice(-2000)}`, { cause: error });
          await new Promise((resolve) => setTimeout(resolve, 50));
        }
      }
    },
    [Symbol.asyncDispose]: async () => {
      await client[Symbol.asyncDispose]();
      await guest[Symbol.asyncDispose]();
    },
  };
}
