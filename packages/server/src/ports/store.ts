import type { Event, EventType, SandboxState } from "@alcove/wire";
import type { RuntimeId, SandboxId } from "./ids.ts";

/**
 * Durable state of the control plane. Stores never invent ids or times. Every method resolves once its effect is
 * durable against a crash of this process, except `appendEvents`, which may be batched by its caller.
 * The contract suite in `contract/store-contract.ts` is the definition.
 */
export interface Store extends AsyncDisposable {
  readonly sandboxes: SandboxStore;
  readonly idempotency: IdempotencyStore;
  readonly events: EventStore;
  /** Names this installation; made at the first start, put on every runtime. */
  instanceId(candidate: string): Promise<string>;
  /** A small fact about this installation. @returns undefined when it was never written. */
  setting(name: string): Promise<string | undefined>;
  changeSetting(name: string, value: string): Promise<void>;
  /** A cheap round trip. */
  ping(): Promise<void>;
}

/** One sandbox as the control plane keeps it. */
export interface SandboxRow {
  id: SandboxId;
  runtimeId: RuntimeId;
  state: SandboxState;
  provider: string;
  workerId: string;
  image: string;
  memoryMb: number;
  vcpus: number;
  /** Empty: nobody's. */
  ownerId: string;
  metadata: Record<string, string>;
  /** How commands run by default, and what is needed to undo or repeat the spawn. */
  env: Record<string, string>;
  user: string | null;
  workdir: string | null;
  network: string | null;
  createdAt: Date;
  expiresAt: Date;
  updatedAt: Date;
  destroyedAt: Date | null;
  /** Somebody asked for its end; it is repeated until confirmed. */
  destroyRequested: boolean;
  error: string | null;
}

export interface CapacityLimits {
  /** 0: no limit. */
  maxSandboxes: number;
  /** 0: no limit. */
  maxSandboxesPerOwner: number;
}

export interface ActiveCounts {
  total: number;
  owner: number;
}

/** States that take up capacity: creating, running, unhealthy. */
export const activeStates = ["creating", "running", "unhealthy"] as const satisfies readonly SandboxState[];

export interface SandboxStore {
  /** Counts and inserts in one transaction, so that limits hold under any concurrency. */
  reserve(
    row: SandboxRow,
    limits: CapacityLimits,
  ): Promise<
    | { admitted: true }
    | { admitted: false; reason: "max_sandboxes" | "max_sandboxes_per_owner"; active: ActiveCounts }
  >;
  activeCounts(ownerId: string): Promise<ActiveCounts>;
  /** Removes a reservation whose spawn was undone. */
  remove(id: SandboxId): Promise<void>;
  get(id: SandboxId): Promise<SandboxRow | undefined>;
  /** Changes a row only while it is in one of the states `from`. @returns the changed row, or undefined when it was in none. */
  update(
    id: SandboxId,
    from: readonly SandboxState[],
    change: SandboxChange,
  ): Promise<SandboxRow | undefined>;
  /** Newest first. `after` is the last row of the page before. */
  list(filter: SandboxFilter): Promise<SandboxRow[]>;
  /** Every row that is not destroyed. */
  listLive(): Promise<SandboxRow[]>;
  /** Forgets rows destroyed before `before`, but those an idempotency key leads to. @returns how many. */
  purge(before: Date): Promise<number>;
}

export type SandboxChange = Partial<
  Pick<SandboxRow, "state" | "image" | "env" | "expiresAt" | "destroyedAt" | "destroyRequested" | "error">
> & { updatedAt: Date };

export interface SandboxFilter {
  states: readonly SandboxState[];
  ownerId?: string;
  provider?: string;
  metadata?: Readonly<Record<string, string>>;
  limit: number;
  after?: { createdAt: Date; id: SandboxId };
}

export interface IdempotencyStore {
  /** Claims a key for a request; the first claim wins until it expires or is released. */
  claim(entry: {
    ownerId: string;
    key: string;
    bodyHash: string;
    sandboxId: SandboxId;
    now: Date;
    expiresAt: Date;
  }): Promise<{ claimed: true } | { claimed: false; bodyHash: string; sandboxId: SandboxId }>;
  /** Forgets a claim whose spawn was refused or failed. */
  release(entry: { ownerId: string; key: string; sandboxId: SandboxId }): Promise<void>;
  purge(before: Date): Promise<number>;
}

export interface NewEvent {
  type: EventType;
  sandboxId: string;
  timestamp: Date;
  data?: Record<string, unknown>;
}

export interface EventStore {
  /** Highest id given so far, 0 when none. */
  lastId(): Promise<number>;
  append(events: readonly (NewEvent & { id: number })[]): Promise<void>;
  /** Oldest first, ids above `afterId`. */
  list(filter: {
    afterId: number;
    types?: readonly EventType[];
    sandboxId?: string;
    limit: number;
  }): Promise<Event[]>;
  /** Keeps the newest `keep` events. */
  trim(keep: number): Promise<void>;
}
