import type { Capability, NetworkMode } from "@alcove/wire";
import type { RuntimeId, SandboxId } from "./ids.ts";
import type { CallOptions, SandboxOperations } from "./sandbox-operations.ts";
import type { Birth, PoolSlot } from "./store.ts";

export type { NetworkMode } from "@alcove/wire";

/**
 * Told that a stage of an operation is over.
 * @param endedAgoMs how long ago: what a stage consisted of is told after it.
 */
export type OnStage = (stage: string, durationMs: number, endedAgoMs?: number) => void;

export interface SpawnOptions extends CallOptions {
  readonly onStage?: OnStage;
}

/**
 * Runs sandboxes. Lifecycle methods are idempotent and resumable: after a crash the caller repeats them with the same
 * ids. The contract suite in `contract/provider-contract.ts` is the definition.
 */
export interface RuntimeProvider extends AsyncDisposable {
  readonly name: string;
  /** What this provider can do here; what is missing answers BadRequest. */
  readonly capabilities: ReadonlySet<Capability>;
  /** Image used when a request names none. */
  readonly defaultImage: string;
  /** true: runtimes live in this process and end with it; what an earlier process ran counts as destroyed. */
  readonly inProcess?: boolean;
  /**
   * Which backend and account it asks, of a provider whose runtimes are somebody else's: another text is another one, unless it has
   * runtimes of the former. Without secrets.
   */
  readonly place?: string;

  /** Tries the real thing cheaply; never throws. */
  check(options: CallOptions): Promise<ProviderCheck>;
  /** Settings fit to be shown to clients: no secrets, no paths of the host that matter. */
  settings(): Record<string, unknown>;

  /**
   * Makes a runtime and binds it to `spec.sandboxId`. Resolves when commands can run in it. A failed or aborted spawn
   * leaves nothing behind once `destroy` of the same runtime id has resolved, or by itself. A second spawn of a runtime
   * that is being made is the first one, and ends with it; of one that is connected, it resolves and makes nothing.
   * The runtime may get another id than the proposed one: every other call names it by that, and what a spawn that was
   * cut off left of it is found through `inventory`, which lists it with the sandbox it is bound to.
   * @throws NotFound for an image that is not there, with the way to get it; ProviderError; Unavailable.
   */
  spawn(spec: RuntimeSpec, options: SpawnOptions): Promise<SpawnedRuntime>;
  /** Every runtime of this instance of ours that exists, running or not, whoever made it, half-made ones included. */
  inventory(options: CallOptions): Promise<InventoryEntry[]>;
  /** Reconnects to a runtime after a restart; a runtime already connected resolves. @throws RuntimeGone when it is dead. */
  adopt(runtimeId: RuntimeId, options: CallOptions): Promise<void>;
  /**
   * Idempotent: an unknown or already destroyed runtime resolves. Kills every process and removes every trace.
   * @throws RuntimeElsewhere
   */
  destroy(runtimeId: RuntimeId, options: CallOptions): Promise<void>;

  /**
   * Operations in a running sandbox, over the connection there is now. A provider may replace a connection that broke:
   * calls on the operations of the old one then fail, and this answers with those of the new one. So callers ask for
   * them anew each time. Without a connection `adopt` makes one. Does no I/O.
   * @throws RuntimeGone when the runtime is not connected or has ended; which of the two, `inventory` says.
   */
  sandbox(runtimeId: RuntimeId): SandboxOperations;
  /** What the machine knows the control groups of a connected runtime by, where that is another name than the runtime's. Does no I/O. */
  controlGroup?(runtimeId: RuntimeId): string | undefined;
  /** Console lines, newest last: the agent's and what booting wrote. */
  logs(runtimeId: RuntimeId, options: CallOptions & { lines: number }): Promise<string[]>;
  /** Calls back when a runtime seems to have ended without `destroy`; `inventory` confirms it. @returns how to stop listening. */
  onExit(listener: (runtimeId: RuntimeId, reason: string) => void): () => void;
  /** What it has made of images, so that they start from memory. @throws ProviderError, Unavailable. */
  snapshots?(options: CallOptions): Promise<ImageSnapshot[]>;
  /** Of runtimes that are made ahead, since the start; undefined where it makes none. Does no I/O. */
  readonly madeAhead?: MadeAhead | undefined;
  /** Of those that are switched on; absent: it has none. Does no I/O. */
  readonly guards?: readonly GuardState[];
  /** Calls back when a runtime's way out is lost and had again; only where something beside the runtime keeps it. */
  onNetwork?(listener: (runtimeId: RuntimeId, change: NetworkChange) => void): () => void;
}

/** An image with a kernel that has booted it, as it was then. */
export interface ImageSnapshot {
  image: string;
  kernel: string;
  sizeBytes: number;
  createdAt: Date;
}

/** Runtimes that are nobody's yet, and what became of them. */
export interface MadeAhead {
  /** That wait for somebody now. */
  waiting: number;
  /** Spawns that one became. */
  claimed: number;
  /** Spawns that found none, or could not have the one they found, and were made from the beginning. */
  cold: number;
  /** Times that one could not be made. */
  failed: number;
  /** Those that waited and were removed because a spawn lacked what the machine has only so much of. */
  gaveWay: number;
}

/** What stops a runtime that takes too much of what all of them share. */
export interface GuardState {
  guard: "disk" | "memory" | "kernel_memory";
  /**
   * There are runtimes, and it stops none though it may have to: it cannot look, or too much is taken and none is to blame.
   * Why is in the log. What it cannot see by its nature, as the disk of an engine elsewhere, is a note of `check` instead.
   */
  helpless: boolean;
}

/** What became of a runtime's network. */
export type NetworkChange = { state: "lost"; reason: string } | { state: "restored"; afterMs: number };

export interface ProviderCheck {
  healthy: boolean;
  /** Why it is unhealthy, and the way out. */
  error?: string;
  /** Of an unhealthy one: it could not be tried for want of room on a disk, so that whether it works is not known. */
  untried?: boolean;
  /** Of an unhealthy one: what tried it ended over it, so that one such check alone says nothing for certain. */
  unanswered?: boolean;
  /** Why spawns would be refused now, though all else works: a disk that is short, and the way out. */
  cannotSpawn?: string;
  /** Remarks that matter to an operator: what is limited here and why. */
  notes: string[];
}

export interface RuntimeSpec {
  /** Proposed by the caller and written down before the call. */
  runtimeId: RuntimeId;
  sandboxId: SandboxId;
  image: string;
  memoryMb: number;
  vcpus: number;
  env: Readonly<Record<string, string>>;
  user?: string;
  workdir?: string;
  network?: NetworkMode;
  /** Time until the sandbox ends itself, the dead-man's grace included; null: never. */
  expiresInMs: number | null;
  metadata: Readonly<Record<string, string>>;
  /** Written down with the runtime; absent or empty: nobody's. */
  ownerId?: string;
  /** Written down with the runtime. */
  name?: string;
  /** Written down with the runtime: whether a database is older than it is told by that. */
  birth?: Birth;
  /** The runtime is a user's part of a VM of the pool. Where it can, the provider bounds them both over all runtimes in them. */
  slot?: RuntimeSlot;
}

export interface RuntimeSlot extends PoolSlot {
  vm: { memoryMb: number; vcpus: number /** How many may share it. */; users: number };
  /** Memory of all the user's runtimes in the VM. */
  shareMb: number;
}

export interface SpawnedRuntime {
  /** The image as resolved, for the record. */
  image: string;
  /** Given by the provider, in place of the proposed one. */
  runtimeId?: RuntimeId;
}

export interface InventoryEntry {
  runtimeId: RuntimeId;
  /** The sandbox it was bound to; absent when the binding was never completed. */
  sandboxId?: SandboxId;
  /**
   * `unreadable`: something is there whose record cannot be understood, one of a newer release for instance. It is not
   * touched unless somebody asks for its end. `elsewhere`: it was made at another backend than the one that is asked now.
   */
  state: "running" | "dead" | "unreadable" | "elsewhere";
  /** What the runtime's own record says of its sandbox. */
  note?: SandboxNote;
}

/** Enough to know a sandbox again without the store. */
export interface SandboxNote {
  image: string;
  /** As `spawn()` answered it. */
  imageResolved?: string;
  memoryMb: number;
  vcpus: number;
  ownerId: string;
  name?: string;
  /** Earlier releases wrote none down. */
  birth?: Birth;
  metadata: Record<string, string>;
  env: Record<string, string>;
  user?: string;
  workdir?: string;
  network?: NetworkMode;
  slot?: PoolSlot;
  createdAt: Date;
  /** When it would end itself, the dead-man's grace included, had nobody extended it. */
  expiresAt?: Date;
}

/** How reasons given to `onExit` begin when a guard of the provider's ended the runtime. */
export const guardStops = {
  disk: "stopped: it had ",
  memory: "stopped: what waits in its sockets ",
  kernelMemory: "stopped: what the kernel keeps for its open directories, locks and connections ",
} as const;
