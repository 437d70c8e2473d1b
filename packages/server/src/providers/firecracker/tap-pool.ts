import { join } from "node:path";
import { exists } from "../../platform/missing.ts";
import { ProviderError, ResourceLimit, type RuntimeId, Unavailable } from "../../ports/index.ts";
import type { GuestNetwork } from "./boot-arguments.ts";

/** A network interface of the host that was made beforehand, and what a machine at it is called. */
export interface Tap {
  name: string;
  guest: GuestNetwork;
}

/** Lends each tap to one machine at a time. Who has which is written down with the machines: `known` tells it at the first use. */
export class TapPool {
  readonly #taps: readonly Tap[];
  readonly #known: () => Promise<ReadonlyMap<RuntimeId, string>>;
  readonly #interfaces: string;
  readonly #lent = new Map<string, RuntimeId>();
  #learning: Promise<void> | undefined;

  /** @param options.entries each `TAP ADDRESS/LENGTH GATEWAY [DNS]`. @throws ProviderError for one that is none. */
  constructor(options: {
    entries: readonly string[];
    known: () => Promise<ReadonlyMap<RuntimeId, string>>;
    /** Unset: /sys/class/net. */
    interfaces?: string | undefined;
  }) {
    this.#taps = options.entries.map(parseTap);
    this.#known = options.known;
    this.#interfaces = options.interfaces ?? "/sys/class/net";
  }

  get size(): number {
    return this.#taps.length;
  }

  /** Names of those that are not on this host: a reboot takes them all. */
  async missing(): Promise<string[]> {
    const names = this.#taps.map(({ name }) => name);
    const there = await Promise.all(names.map((name) => exists(join(this.#interfaces, name))));
    return names.filter((_name, index) => there[index] !== true);
  }

  /** @throws ResourceLimit when each is lent; Unavailable when those that are not are missing. */
  async take(runtimeId: RuntimeId): Promise<Tap> {
    await this.#learn();
    const missing = await this.missing();
    const unlent = this.#taps.filter(({ name }) => !this.#lent.has(name));
    const free = unlent.find(({ name }) => !missing.includes(name));
    if (free === undefined && unlent.length > 0) throw new Unavailable(missingTaps(missing));
    if (free === undefined)
      throw new ResourceLimit(
        `each of the ${this.size} networks of providers.firecracker.network is in use; destroy a sandbox, or spawn with network "none"`,
      );
    this.#lent.set(free.name, runtimeId);
    return free;
  }

  /** Once its machine is gone. */
  giveBack(runtimeId: RuntimeId): void {
    for (const [name, holder] of this.#lent) if (holder === runtimeId) this.#lent.delete(name);
  }

  #learn(): Promise<void> {
    const learn = async () => {
      for (const [runtimeId, name] of await this.#known()) this.#lent.set(name, runtimeId);
    };
    this.#learning ??= learn().catch((error: unknown) => {
      this.#learning = undefined;
      throw error;
    });
    return this.#learning;
  }
}

/** What is to be done about interfaces that are not there. */
export function missingTaps(names: readonly string[]): string {
  return `of providers.firecracker.network these are not on this host: ${names.join(", ")}; a reboot takes them, "ip tuntap add" makes them again`;
}

function parseTap(entry: string): Tap {
  const [name, address, gateway, dns, more] = entry.trim().split(/\s+/);
  if (name === undefined || address === undefined || gateway === undefined || more !== undefined)
    throw new ProviderError(
      `providers.firecracker.network: "${entry}" is no TAP ADDRESS/LENGTH GATEWAY [DNS], such as "tap0 172.16.0.2/30 172.16.0.1 1.1.1.1"`,
    );
  return { name, guest: { address, gateway, ...(dns === undefined ? {} : { dns }) } };
}

/** An address of its own for each machine on a bridge, from its IPv4 address; locally administered. */
export function macOf({ address }: GuestNetwork): string {
  const bytes = address.split("/")[0]?.split(".").map(Number) ?? [];
  return ["06", "00", ...bytes.map((byte) => byte.toString(16).padStart(2, "0"))].join(":");
}
