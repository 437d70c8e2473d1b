import { type ChildProcessByStdio, spawn } from "node:child_process";
import { once } from "node:events";
import { chmod, mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { basename, join } from "node:path";
import { createInterface, type Interface } from "node:readline";
import type { Readable, Writable } from "node:stream";
import { fileURLToPath } from "node:url";
import { agentBinary } from "./agent-binary.ts";
import { mustRun } from "./programs.ts";

const farEnd = fileURLToPath(new URL("programs/far-end.py", import.meta.url));

/** The machine's own address, its neighbour's, and one further away: all in a network that tests allow. */
export const ownAddress = "198.51.100.1";
export const farAddress = "198.51.100.10";
export const allowed = "198.51.100.0/24";
/** The machine's own by a route alone, as clouds give it the address of a load balancer. */
export const routedAddress = "34.98.76.54";
/** What the machine asks for names. */
export const resolver = "10.53.0.53";
/** Addresses of each kind that is closed, all of which the far end answers on. */
export const closedAddresses = [
  "10.1.2.3",
  "100.64.1.1",
  "168.63.129.16",
  "169.254.169.254",
  "172.16.9.9",
  "192.0.0.9",
  "192.0.2.9",
  "192.88.99.9",
  "192.168.7.7",
  "198.18.7.7",
  "203.0.113.9",
  resolver,
];

/** More that is closed, on which nobody answers. */
export const specialAddresses = [
  "198.18.255.2",
  "198.18.255.255",
  "224.0.0.251",
  "255.255.255.255",
  "127.0.0.1",
  "0.0.0.0",
];
/** Spellings of IPv6: of what is closed, and of an address of the internet. */
export const addresses6 = [
  "::1",
  "fd00::2",
  "fd00:ec2::254",
  "fe80::1%tap0",
  "ff02::1%tap0",
  "64:ff9b::a01:203",
  "2002:a01:203::1",
  "::ffff:0:a01:203",
  "::a01:203",
  "2606:4700:4700::1111",
];

/** What the program `reach.py` answers: by address, then by the way it was tried. */
export type Reached = Record<string, Record<string, string>>;

/** @returns what of it got through to anybody, by any way. */
export function gotThrough(reached: Reached): string[] {
  return Object.entries(reached).flatMap(([address, ways]) =>
    Object.entries(ways)
      .filter(([, answer]) => /reached|answered/.test(answer))
      // Its own loopback answers echoes; nothing else is there.
      .filter(([way]) => !(way === "echo" && /^(127|0)\./.test(address)))
      .map(([way, answer]) => `${address}, ${way}: ${answer}`),
  );
}

export interface Counts {
  tcp: Record<string, number>;
  udp: Record<string, number>;
  names: number;
  open: number;
  most: number;
  taken: number;
}

/**
 * A network of two machines, in network namespaces of its own, for what must not leave this machine: sandboxes whose
 * launcher runs in the first one believe that to be the machine.
 */
export class FarNetwork implements AsyncDisposable {
  /** A launcher in the first machine. */
  readonly launcher: string;
  /** Runs a program there. */
  readonly entry: string;
  readonly #dir: string;
  readonly #names: readonly string[];
  readonly #ends: End[];

  private constructor(dir: string, names: readonly string[], ends: End[]) {
    this.#dir = dir;
    this.#names = names;
    this.#ends = ends;
    this.launcher = join(dir, "launcher");
    this.entry = join(dir, "enter");
  }

  static async open(): Promise<FarNetwork> {
    const dir = await mkdtemp(join(tmpdir(), "alcove-far-"));
    const [near, far] = [`${basename(dir)}-near`, `${basename(dir)}-end`] as const;
    const network = new FarNetwork(dir, [near, far], []);
    const lines = [
      `netns add ${near}`,
      `netns add ${far}`,
      `link add near netns ${near} type veth peer name far netns ${far}`,
      `-n ${near} link set lo up`,
      `-n ${far} link set lo up`,
      `-n ${near} addr add ${ownAddress}/24 dev near`,
      `-n ${far} addr add 198.51.100.2/24 dev far`,
      `-n ${far} addr add ${farAddress}/24 dev far`,
      ...closedAddresses.map((address) => `-n ${far} addr add ${address}/32 dev lo`),
      `-n ${near} link set near up`,
      `-n ${far} link set far up`,
      `-n ${near} route add default via 198.51.100.2`,
      `-n ${near} route add local ${routedAddress} dev lo`,
    ];
    try {
      for (const line of lines) await mustRun("ip", line.split(" "));
      const resolvers = join(dir, "resolv.conf");
      await writeFile(resolvers, `nameserver ${resolver}\n`);
      const device = join(dir, "tun");
      await mustRun("mknod", [device, "c", "10", "200"]);
      await chmod(device, 0o666);
      const mounts = [
        `mount --bind ${resolvers} "$(readlink -f /etc/resolv.conf)"`,
        // As distributions have it; here it may be root's alone.
        `mount --bind ${device} /dev/net/tun`,
      ].join(" && ");
      const enter = `nsenter --net=/run/netns/${near} unshare --mount --propagation slave`;
      const script = (...words: string[]) => `#!/bin/sh\nexec ${words.join(" ")} "$@"\n`;
      const inside = `sh -c '${mounts} && exec "$@"' sh`;
      await writeFile(network.entry, script(enter, inside), { mode: 0o755 });
      await writeFile(network.launcher, script(network.entry, agentBinary("alcove-launch")), { mode: 0o755 });
      for (const name of [near, far]) network.#ends.push(await End.start(name));
    } catch (error) {
      await network[Symbol.asyncDispose]();
      throw error;
    }
    return network;
  }

  /** What came to the machine itself, its loopback included. */
  near(): Promise<Counts> {
    return this.#ends[0]?.counts() ?? Promise.reject(new Error("closed"));
  }

  /** What came to everybody else. */
  far(): Promise<Counts> {
    return this.#ends[1]?.counts() ?? Promise.reject(new Error("closed"));
  }

  async [Symbol.asyncDispose](): Promise<void> {
    for (const end of this.#ends.splice(0)) await end.stop();
    for (const name of this.#names) await mustRun("ip", ["netns", "delete", name]).catch(() => undefined);
    await rm(this.#dir, { recursive: true, force: true });
  }
}

class End {
  readonly #child: ChildProcessByStdio<Writable, Readable, null>;
  readonly #lines: Interface;

  private constructor(child: ChildProcessByStdio<Writable, Readable, null>) {
    this.#child = child;
    this.#lines = createInterface({ input: child.stdout });
  }

  static async start(name: string): Promise<End> {
    const arguments_ = [`--net=/run/netns/${name}`, "python3", farEnd];
    const end = new End(spawn("nsenter", arguments_, { stdio: ["pipe", "pipe", "inherit"] }));
    await end.#line();
    return end;
  }

  async counts(): Promise<Counts> {
    const line = this.#line();
    this.#child.stdin.write("\n");
    return JSON.parse(await line);
  }

  async stop(): Promise<void> {
    if (this.#child.exitCode !== null) return;
    const ended = once(this.#child, "exit");
    this.#child.stdin.end();
    await ended;
  }

  async #line(): Promise<string> {
    const [line] = await once(this.#lines, "line", { signal: AbortSignal.timeout(10_000) });
    return line;
  }
}
