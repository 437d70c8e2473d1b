import { type ChildProcess, spawn } from "node:child_process";
import { once } from "node:events";
import { mkdirSync } from "node:fs";
import { resolve } from "node:path";
import { setTimeout as delay } from "node:timers/promises";
import type { Behaviour } from "./behaviour.ts";

/** What a machine is made of, as its settings say. */
export interface Machine {
  root: string;
  layer: string | undefined;
  bootArguments: string;
  memoryMb: number;
  vcpus: number;
}

export interface Guest {
  /** Where the agent of the guest is reached; undefined while nothing listens there. */
  door(): { path: string; handshake: boolean } | undefined;
  readonly ended: Promise<void>;
  /** Halts it, or lets it go on. */
  signal(name: "SIGSTOP" | "SIGCONT"): void;
  end(): Promise<void>;
}

export async function startGuest(
  machine: Machine,
  behaviour: Behaviour,
  say: (text: string) => void,
): Promise<Guest> {
  if (behaviour.says !== undefined) say(behaviour.says);
  if (behaviour.panics) return { ...silent(), ended: delay(50).then(() => undefined) };
  if (behaviour.guest === "none") return silent();
  return behaviour.guest === "qemu" ? qemuGuest(machine, behaviour, say) : processGuest(machine, say);
}

function silent(): Guest {
  return {
    door: () => undefined,
    ended: new Promise(() => undefined),
    signal: () => undefined,
    end: async () => undefined,
  };
}

/**
 * In namespaces of its own: what the root drive holds, taken out of the image into memory, with the devices that programs
 * need. All of it goes with its first process, and that with this one.
 */
const setUp = `
set -e
mount --make-rprivate /
mount -t tmpfs -o mode=0755 guest "$ROOT"
debugfs -R "rdump / $ROOT" "$IMAGE" >/dev/null 2>&1
cd "$ROOT"
for name in proc dev sys tmp run; do [ -d $name ] || mkdir $name; done
chmod 1777 tmp
mount -t tmpfs -o mode=0755 dev dev
for name in null zero full random urandom tty; do : > dev/$name; mount --bind /dev/$name dev/$name; done
mkdir dev/pts dev/shm .alcove/door
mount -t devpts -o newinstance,ptmxmode=0666 devpts dev/pts
ln -s pts/ptmx dev/ptmx
ln -s /proc/self/fd dev/fd
mount -t tmpfs -o mode=1777 shm dev/shm
mount --bind "$DOOR" .alcove/door
hostname "$NAME"
ip link set lo up
# The agent takes another user, and a process whose user changes no longer ends with its parent: below the first one it does.
exec unshare --pid --fork sh -c "
mount -t proc proc proc
exec env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin chroot . /.alcove/alcove-agent serve --socket /.alcove/door/agent"
`;

function processGuest(machine: Machine, say: (text: string) => void): Guest {
  const [root, door] = [resolve("guest-root"), resolve("guest-door")];
  for (const folder of [root, door]) mkdirSync(folder, { recursive: true });
  const name = /(?:^| )hostname=(\S+)/.exec(machine.bootArguments)?.[1] ?? "sandbox";
  const namespaces = ["--mount", "--pid", "--net", "--ipc", "--uts", "--fork", "--kill-child"];
  const child = spawn("setpriv", ["--pdeathsig", "KILL", "--", "unshare", ...namespaces, "sh", "-c", setUp], {
    stdio: ["ignore", "pipe", "pipe"],
    env: { ...process.env, ROOT: root, DOOR: door, IMAGE: machine.root, NAME: name },
  });
  for (const stream of [child.stdout, child.stderr])
    stream.setEncoding("utf8").on("data", (text: string) => say(text.replaceAll("\n", "\r\n")));
  const ended = once(child, "exit").then(() => undefined);
  return {
    door: () => ({ path: `${door}/agent`, handshake: false }),
    ended,
    signal: () => undefined,
    end: () => ends(child, ended),
  };
}

async function qemuGuest(
  machine: Machine,
  behaviour: Behaviour,
  say: (text: string) => void,
): Promise<Guest> {
  if (behaviour.kernel === undefined) throw new Error("a guest of QEMU needs a kernel");
  // What is imported here takes longer to load than a process guest takes to start.
  const { bootGuest } = await import("../qemu-guest.ts");
  // What is killed removes nothing: its files go with the folder of its machine.
  process.env.TMPDIR = process.cwd();
  const guest = await bootGuest({
    ...behaviour.kernel,
    drives: machine.layer === undefined ? [machine.root] : [machine.root, machine.layer],
    // Its devices are on the bus that a microVM has not.
    bootArguments: machine.bootArguments.replace("pci=off ", ""),
    memoryMb: machine.memoryMb,
    vcpus: machine.vcpus,
    vsockPath: resolve("qemu-vsock"),
  });
  let told = 0;
  const pump = setInterval(() => {
    const text = guest.console();
    if (text.length > told) say(text.slice(told));
    told = text.length;
  }, 20);
  const ended = (async () => {
    await guest.ended;
    clearInterval(pump);
  })();
  return {
    // vhost-device-vsock may answer nobody any more once it was asked before its guest was there.
    door: () =>
      guest.console().includes("alcove-agent: version")
        ? { path: guest.vsockPath, handshake: true }
        : undefined,
    ended,
    signal: () => undefined,
    end: async () => guest[Symbol.asyncDispose](),
  };
}

async function ends(child: ChildProcess, ended: Promise<void>): Promise<void> {
  child.kill("SIGKILL");
  await ended;
}
