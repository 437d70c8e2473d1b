import { type ChildProcess, spawn } from "node:child_process";
import { once } from "node:events";
import { createReadStream, createWriteStream, existsSync } from "node:fs";
import { chmod, copyFile, mkdir, mkdtemp, readFile, rename, rm, writeFile } from "node:fs/promises";
import { connect, type Socket } from "node:net";
import { tmpdir } from "node:os";
import { basename, dirname, join } from "node:path";
import { createInterface } from "node:readline";
import { pipeline } from "node:stream/promises";
import { createGzip } from "node:zlib";
import { projectRoot } from "./agent-binary.ts";
import { eventually } from "./http.ts";
import { findProgram, mustRun } from "./programs.ts";

/** What Debian's cloud kernel needs of its modules for a disk, an overlay, a network and a vsock on QEMU's PCI bus, in this order. */
const modules = [
  "drivers/virtio/virtio_ring",
  "drivers/virtio/virtio",
  "drivers/virtio/virtio_pci_legacy_dev",
  "drivers/virtio/virtio_pci_modern_dev",
  "drivers/virtio/virtio_pci",
  "drivers/block/virtio_blk",
  "fs/overlayfs/overlay",
  "net/core/failover",
  "drivers/net/net_failover",
  "drivers/net/virtio_net",
  "net/vmw_vsock/vsock",
  "net/vmw_vsock/vmw_vsock_virtio_transport_common",
  "net/vmw_vsock/vmw_vsock_virtio_transport",
];
/** Raised when what is built below changes. */
const initrdRevision = 2;

/** A kernel, and the initrd that makes it the one a microVM boots: with its drivers, and its root as `root=` says. */
export interface GuestKernel {
  kernel: string;
  initrd: string;
}

/** Fetched and built once, then kept in the clone. */
export async function guestKernel(): Promise<GuestKernel> {
  const cache = `${projectRoot}/.cache/qemu`;
  const fetched = await mustRun(`${projectRoot}/scripts/qemu-kernel.sh`, [cache], { timeoutMs: 120_000 });
  const kernel = fetched.stdout.trim();
  const release = basename(kernel).replace("vmlinuz-", "");
  const initrd = join(cache, `initrd-${release}-${initrdRevision}.gz`);
  const known = await readFile(initrd).catch(() => undefined);
  if (known === undefined) await makeInitrd(initrd, join(cache, "lib/modules", release, "kernel"));
  return { kernel, initrd };
}

async function makeInitrd(initrd: string, moduleFolder: string): Promise<void> {
  const busybox = findProgram("busybox");
  if (busybox === undefined) throw new Error("busybox is missing (Debian package busybox-static)");
  const folder = await mkdtemp(`${initrd}.`);
  try {
    const root = join(folder, "root");
    for (const name of ["bin", "modules", "dev", "proc", "root"])
      await mkdir(join(root, name), { recursive: true });
    await copyFile(busybox, join(root, "bin/busybox"));
    for (const name of modules)
      await copyFile(join(moduleFolder, `${name}.ko`), join(root, "modules", `${basename(name)}.ko`));
    await writeFile(join(root, "modules/order"), modules.map((name) => `${basename(name)}.ko\n`).join(""));
    await copyFile(`${projectRoot}/packages/server/test/support/qemu/initrd-init`, join(root, "init"));
    for (const name of ["init", "bin/busybox"]) await chmod(join(root, name), 0o755);
    const line = 'cd "$1" && find . | "$2" cpio -o -H newc 2>/dev/null >"$3"';
    await mustRun("sh", ["-c", line, "sh", root, busybox, join(folder, "cpio")]);
    await pipeline(
      createReadStream(join(folder, "cpio")),
      createGzip({ level: 1 }),
      createWriteStream(join(folder, "gz")),
    );
    await rename(join(folder, "gz"), initrd);
  } finally {
    await rm(folder, { recursive: true, force: true });
  }
}

/** The path of vhost-device-vsock; waits for a build that is under way. */
export async function vsockDevice(): Promise<string> {
  const script = `${projectRoot}/scripts/vsock-device.sh`;
  return (await mustRun(script, ["--found"], { timeoutMs: 600_000 })).stdout.trim();
}

/** A guest of QEMU without acceleration: real, and slower than a microVM by the factor of an emulated processor. */
export interface QemuGuest extends AsyncDisposable {
  /** The unix socket of its vsock, which speaks as Firecracker's does. */
  readonly vsockPath: string;
  /** What it has written to its serial console so far. */
  console(): string;
  /** The exit code of QEMU, once the guest has ended. */
  readonly ended: Promise<number | null>;
  /** Ends it as a power cut does. */
  kill(): void;
  /** Of one that was booted to be saved: stops it, writes its memory and devices to a file and ends it. */
  save(file: string): Promise<void>;
}

const vsockOf = (chardev: string) => `vhost-user-vsock-pci,chardev=${chardev}`;

/** QEMU's own control socket: one request at a time. */
class QemuControl implements Disposable {
  readonly #socket: Socket;
  readonly #lines: AsyncIterator<string>;

  private constructor(socket: Socket) {
    this.#socket = socket;
    this.#lines = createInterface(socket)[Symbol.asyncIterator]();
  }

  static async open(file: string): Promise<QemuControl> {
    const socket = await eventually(async () => {
      const found = connect(file);
      // QEMU has not come that far.
      return await once(found, "connect").then(
        () => found,
        () => undefined,
      );
    });
    const control = new QemuControl(socket);
    await control.run("qmp_capabilities");
    return control;
  }

  async run(execute: string, args: Record<string, unknown> = {}): Promise<Record<string, unknown>> {
    this.#socket.write(`${JSON.stringify({ execute, arguments: args })}\n`);
    for (;;) {
      const { value = "{}" } = await this.#lines.next();
      const said = JSON.parse(value) as { return?: Record<string, unknown>; error?: { desc: string } };
      if (said.error !== undefined) throw new Error(`${execute}: ${said.error.desc}`);
      // The greeting and events come between.
      if (said.return !== undefined) return said.return;
    }
  }

  /** Waits for a state of the machine. */
  async settled(status: string): Promise<void> {
    await eventually(async () => (await this.run("query-status")).status === status || undefined, 60_000);
  }

  [Symbol.dispose](): void {
    this.#socket.destroy();
  }
}

/**
 * Boots a guest.
 * @param options.drives in the order of their names: /dev/vda is read-only, the others are not.
 * @param options.bootArguments as a microVM's kernel gets them.
 */
export async function bootGuest(
  options: GuestKernel & {
    drives: readonly [rootfs: string, ...rest: string[]];
    bootArguments: string;
    memoryMb?: number;
    vcpus?: number;
    /** Its network ends at this port of the machine's loopback interface, as 10.0.2.100:80. None when left out. */
    forwardTo?: number;
    /** The monitor's socket; in a folder of its own when left out. */
    vsockPath?: string;
    /**
     * To be saved: QEMU saves no machine that has a vsock, so that it has none; it is given one when it is restored.
     * Restored: goes on from such a file instead of booting.
     */
    from?: "to be saved" | { file: string };
  },
): Promise<QemuGuest> {
  const { memoryMb = 256, vcpus = 1 } = options;
  const folder = await mkdtemp(join(tmpdir(), "alcove-qemu-"));
  const vsockPath = options.vsockPath ?? join(folder, "v.sock");
  await mkdir(dirname(vsockPath), { recursive: true });
  const children: ChildProcess[] = [];
  const stop = async () => {
    for (const child of children.toReversed()) {
      if (child.exitCode !== null || child.signalCode !== null) continue;
      const exit = once(child, "exit");
      child.kill("SIGKILL");
      await exit;
    }
    await rm(vsockPath, { force: true });
    await rm(folder, { recursive: true, force: true });
  };
  let text = "";
  try {
    const socket = join(folder, "vhost.sock");
    const device = spawn(
      "setpriv",
      [
        "--pdeathsig",
        "KILL",
        "--",
        await vsockDevice(),
        "--guest-cid=3",
        `--socket=${socket}`,
        `--uds-path=${vsockPath}`,
      ],
      { stdio: ["ignore", "ignore", "pipe"] },
    );
    children.push(device);
    let complaint = "";
    device.stderr.setEncoding("utf8").on("data", (part: string) => {
      complaint = (complaint + part).slice(-4096);
    });
    await eventually(() => {
      if (device.exitCode !== null) throw new Error(`vhost-device-vsock ended: ${complaint}`);
      return existsSync(socket) || undefined;
    });
    const drives = options.drives.flatMap((file, index) => [
      "-drive",
      `file=${file.replaceAll(",", ",,")},format=raw,if=none,id=d${index},readonly=${index === 0 ? "on" : "off"}`,
      "-device",
      `virtio-blk-pci,drive=d${index}`,
    ]);
    const network =
      options.forwardTo === undefined
        ? []
        : [
            "-netdev",
            `user,id=n0,restrict=on,guestfwd=tcp:10.0.2.100:80-tcp:127.0.0.1:${options.forwardTo}`,
            ...["-device", "virtio-net-pci,netdev=n0,romfile="],
          ];
    const { from } = options;
    const control = join(folder, "control.sock");
    const vsock = ["-chardev", `socket,id=c0,path=${socket}`];
    if (from === undefined) vsock.push("-device", vsockOf("c0"));
    if (typeof from === "object") vsock.push("-incoming", `exec:cat ${from.file}`);
    if (from !== undefined) vsock.push("-qmp", `unix:${control},server=on,wait=off`);
    const qemu = spawn(
      // Nobody else ends it when the tests are killed.
      "setpriv",
      [
        ...["--pdeathsig", "KILL", "--", "qemu-system-x86_64"],
        ...["-M", "pc,memory-backend=mem", "-accel", "tcg", "-m", String(memoryMb), "-smp", String(vcpus)],
        ...["-object", `memory-backend-memfd,id=mem,size=${memoryMb}M,share=on`],
        ...["-nodefaults", "-no-user-config", "-display", "none", "-serial", "stdio", "-no-reboot"],
        ...drives,
        ...network,
        ...vsock,
        // As guests of KVM are by themselves: beside others that boot an emulated timer stands still for longer than the kernel waits for it.
        ...["-append", `no_timer_check ${options.bootArguments}`],
        ...["-kernel", options.kernel, "-initrd", options.initrd],
      ],
      { stdio: ["ignore", "pipe", "pipe"] },
    );
    children.push(qemu);
    for (const stream of [qemu.stdout, qemu.stderr])
      stream.setEncoding("utf8").on("data", (part: string) => {
        text += part.replaceAll("\r", "");
      });
    if (typeof from === "object") {
      using qmp = await QemuControl.open(control);
      // As it was saved.
      await qmp.settled("paused");
      await qmp.run("cont");
      await qmp.run("device_add", { driver: "vhost-user-vsock-pci", chardev: "c0", id: "v0" });
      // vhost-device-vsock may answer nobody any more once it was asked before its guest was there.
      await eventually(async () => {
        const path = "/machine/peripheral/v0/virtio-backend";
        const status = await qmp.run("x-query-virtio-status", { path }).catch(() => undefined);
        return JSON.stringify(status)?.includes("DRIVER_OK") || undefined;
      }, 60_000);
    }
    const ended = once(qemu, "close").then(([code]) => code as number | null);
    return {
      vsockPath,
      console: () => text,
      ended,
      kill: () => qemu.kill("SIGKILL"),
      save: async (file) => {
        using qmp = await QemuControl.open(control);
        await qmp.run("stop");
        await qmp.run("migrate", { uri: `exec:cat > ${file}` });
        await qmp.settled("postmigrate");
        qemu.kill("SIGKILL");
        await ended;
      },
      [Symbol.asyncDispose]: stop,
    };
  } catch (error) {
    await stop();
    throw error;
  }
}
