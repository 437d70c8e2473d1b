import type { Event, EventType, SandboxState } from "@alcove/wire";
import type { AuditStore } from "./audit-store.ts";
import type { CapacityDenial, CapacityInUse, CapacityLimits, CapacityRules } from "./capacity.ts";
import type { RuntimeId, SandboxId } from "./ids.ts";
import type { KeyStore } from "./key-store.ts";
import type { QuotaStore } from "./quota-store.ts";
import type { TemplateStore } from "./template-store.ts";

/**
 * Durable state of the control plane. Stores never invent ids or times. Every method resolves once its effect is
 * durable against a crash of this process, except `appendEvents`, which may be batched by its caller.
 * The contract suite in `contract/store-contract.ts` is the definition.
 */
export interface Store extends AsyncDisposable {
  readonly sandboxes: SandboxStore;
  readonly idempotency: IdempotencyStore;
  readonly events: EventStore;
  readonly quotas: QuotaStore;
  readonly templates: TemplateStore;
  readonly audit: AuditStore;
  readonly keys: KeyStore;
  /** Names this installation; made at the first start, put on every runtime. */
  instanceId(candidate: string): Promise<string>;
  /** A small fact about this installation. @returns undefined when it was never written. */
  setting(name: string): Promise<string | undefined>;
  changeSetting(name: string, value: string): Promise<void>;
  /** How long it took to make writes durable, milliseconds; those that come together count once. */
  readonly commits: Latencies;
  /** A cheap look at what is stored. @throws when the database cannot be read. */
  ping(): Promise<void>;
}

/** Counts of durations, none of them kept. */
export interface Latencies {
  readonly count: number;
  readonly sum: number;
  /** How many were at most each bound. */
  upTo(): { bound: number; count: number }[];
}

/** One sandbox as the control plane keeps it. */
export interface SandboxRow {
  id: SandboxId;
  runtimeId: RuntimeId;
  state: SandboxState;
  provider: string;
  workerId: string;
  /** As it was asked for. */
  image: string;
  /** What the provider made of it: the name behind an alias, with its tag; null until it is known. */
  imageResolved: string | null;
  memoryMb: number;
  vcpus: number;
  /** Empty: nobody's. */
  ownerId: string;
  /** Unique among the owner's sandboxes that count; null: none. */
  name: string | null;
  metadata: Record<string, string>;
  /** How commands run by default, and what is needed to undo or repeat the spawn. */
  env: Record<string, string>;
  user: string | null;
  workdir: string | null;
  network: string | null;
  createdAt: Date;
  expiresAt: Date;
  /**
   * Its runtime has ended by then, by its own switch, though nobody ends it: never earlier than what that was told. null: an
   * earlier release made it, and has told it `expiresAt` and the grace.
   */
  endsItselfAt: Date | null;
  updatedAt: Date;
  destroyedAt: Date | null;
  /** Somebody asked for its end; it is repeated until confirmed. */
  destroyRequested: boolean;
  error: string | null;
  /** Where its user is in the pool; absent: it is not part of one. */
  slot?: PoolSlot;
}

/** A user's place in a VM of the pool: held by the user's living sandboxes there, and free with the last of them. */
export interface PoolSlot {
  vmId: string;
  /** Whom commands run as: unique among the users of the VM. */
  uid: number;
}

/** How many VMs there may be, and how many users in each. */
export interface PoolRules {
  maxVms: number;
  maxUsersPerVm: number;
}

/** Every VM has all its users, or the user has its one slot on another provider. */
export type SlotDenial = { reason: "pool_full" } | { reason: "slot_elsewhere"; provider: string };

export interface PoolInUse {
  vms: number;
  users: number;
}

/** What a list tells of a sandbox. */
export type ListedSandbox = Omit<SandboxRow, "env">;

/**
 * Who writes, and since which acquisition of the sandbox. A store that several control planes share makes both part of
 * the condition of a write, so that a holder that lost a sandbox changes nothing of it any more. A store of one process
 * has one writer, and every fence holds.
 */
export interface Fence {
  readonly holder: string;
  readonly generation: number;
}

/** A key that makes repeated requests one. */
export interface IdempotencyClaim {
  key: string;
  bodyHash: string;
  expiresAt: Date;
}

/**
 * Which sandbox of which run of the service it is. The store counts what each run makes, together with the row; so a
 * birth that a store has not counted is younger than that store, whatever else was restored with it.
 */
export interface Birth {
  /** A run of the service, one process: its random name. */
  run: string;
  /** From 1. */
  number: number;
}

export interface Reservation {
  row: SandboxRow;
  /** The run's next one is counted together with the row, for good. */
  birth?: Pick<Birth, "run">;
  /** Read inside the transaction that counts. */
  limits: CapacityRules;
  fence: Fence;
  /** Present: the row is given a slot, the owner's own where there is one, else in the fullest VM with room, else in a new one. */
  pool?: PoolRules & { newVmId: string };
  /** Claimed for the row's owner together with the reservation, or not at all. */
  claim?: IdempotencyClaim;
}

export type ReserveOutcome =
  | { admitted: true; slot?: PoolSlot; birth?: Birth }
  | ({ admitted: false; inUse: CapacityInUse; limits: CapacityLimits } & CapacityDenial)
  /** A living sandbox of the owner has the name; limits were not looked at. */
  | { admitted: false; reason: "name_taken"; sandboxId: SandboxId }
  /** The owner's slot in the pool is on another provider. */
  | { admitted: false; reason: "slot_elsewhere"; provider: string }
  /** Another spawn holds the key; limits were not looked at. */
  | { admitted: false; reason: "claimed"; bodyHash: string; sandboxId: SandboxId };

export type LiveState = Pick<SandboxRow, "id" | "workerId" | "state" | "updatedAt">;

export interface SandboxStore {
  /**
   * Looks at the claim and the name, counts against the rules for the owner's quota of this moment, inserts the row and
   * keeps the claim, in one transaction: limits hold under any concurrency, a key leads to one sandbox, and a name to one
   * living one of its owner. A claim that has expired or leads to no row any more is free.
   */
  reserve(reservation: Reservation): Promise<ReserveOutcome>;
  /**
   * From counters that every change of a state keeps, so at the same cost for ten sandboxes and ten thousand. Creating,
   * running and unhealthy ones count, and expired ones until they are destroyed, unless they were in state error before.
   */
  inUse(ownerId: string): Promise<CapacityInUse>;
  /** The highest number among the births of a run that were counted; 0 when there is none. */
  lastBirth(run: string): Promise<number>;
  /** Counts, for good, births that other stores gave, and with each those of its run that have lower numbers. */
  countBirths(births: readonly Birth[]): Promise<void>;
  /** What the rows themselves say, so that nothing can hold a slot but a sandbox. */
  poolInUse(): Promise<PoolInUse>;
  /** Why `reserve` would find no slot now. */
  poolDenial(wanted: {
    ownerId: string;
    provider: string;
    rules: PoolRules;
  }): Promise<SlotDenial | undefined>;
  /** The living sandbox of an owner that has this name. */
  named(ownerId: string, name: string): Promise<SandboxRow | undefined>;
  /** Removes a reservation whose spawn was undone, and the claim that leads to it. */
  remove(id: SandboxId, fence: Fence): Promise<void>;
  get(id: SandboxId): Promise<SandboxRow | undefined>;
  /**
   * Changes a row only while it is in one of the states `from` and the fence holds.
   * @param events what the change means: kept with it, so that it is told after a crash, until it is appended.
   * @returns the changed row, or undefined when nothing was changed.
   */
  update(
    id: SandboxId,
    from: readonly SandboxState[],
    change: SandboxChange,
    fence: Fence,
    events?: readonly NewEvent[],
  ): Promise<SandboxRow | undefined>;
  /**
   * One page, newest first; it looks at a bounded number of rows and amount of labels, however few of them the filter lets
   * through, and shows at most 256 KiB of labels and those of one more row.
   */
  list(filter: SandboxFilter): Promise<SandboxPage>;
  /** Every row that is not destroyed, at once: for when nobody waits. */
  listLive(): Promise<SandboxRow[]>;
  /**
   * What tells of each row that is not destroyed whether it has changed, in slices between which others have their turn.
   * A row that is made or changed meanwhile is told as it was, as it is, or not at all.
   */
  liveStates(): AsyncIterable<readonly LiveState[]>;
  /** Forgets destroyed rows, oldest first, in slices between which others have their turn. @returns how many. */
  purge(which: DestroyedToForget): Promise<number>;
}

export interface DestroyedToForget {
  /** Destroyed before this time; those an idempotency key leads to stay. */
  before: Date;
  /** Beyond the newest so many they go whatever their age, and the keys that lead to them with them. */
  keep: number;
  signal?: AbortSignal;
}

export type SandboxChange = Partial<
  Pick<
    SandboxRow,
    | "state"
    | "runtimeId"
    | "imageResolved"
    | "metadata"
    | "env"
    | "expiresAt"
    | "endsItselfAt"
    | "destroyedAt"
    | "destroyRequested"
    | "error"
  >
> & { updatedAt: Date };

export interface SandboxFilter {
  states: readonly SandboxState[];
  ownerId?: string;
  /** Destroyed ones keep theirs. */
  name?: string;
  provider?: string;
  metadata?: Readonly<Record<string, string>>;
  limit: number;
  /** Only what is older than this row. */
  after?: SandboxPosition;
}

export interface SandboxPosition {
  createdAt: Date;
  id: SandboxId;
}

export interface SandboxPage {
  rows: ListedSandbox[];
  /** Where the next page goes on; absent when this is the last. The page may be short, or empty, all the same. */
  next?: SandboxPosition;
}

/** The claims that `reserve` made. */
export interface IdempotencyStore {
  /** @returns what holds a key now: neither expired nor leading to a row that is gone. */
  find(key: {
    ownerId: string;
    key: string;
    now: Date;
  }): Promise<{ bodyHash: string; sandboxId: SandboxId } | undefined>;
  /** Forgets a claim whose spawn failed. */
  release(entry: { ownerId: string; key: string; sandboxId: SandboxId }): Promise<void>;
  /** Forgets what expired before `before`, in slices. @returns how many. */
  purge(before: Date, options?: { signal?: AbortSignal }): Promise<number>;
}

export interface NewEvent {
  type: EventType;
  sandboxId: string;
  /** Whose it is, for keys that see one owner's alone; absent: nobody's. */
  ownerId?: string;
  timestamp: Date;
  data?: Record<string, unknown>;
}

export interface EventPage {
  events: Event[];
  /** Up to this id everything wanted is among them; undefined: there was nothing more to look at. */
  reached: number | undefined;
  /** The last event that was trimmed, of this owner where one is wanted, and how many were at most; 0: none. */
  forgotten: {
    upto: number;
    atMost: number;
    /** Up to this id some were passed over, which no event of this store has had; absent or 0: none were. */
    passedOverUpto?: number;
  };
}

export interface EventStore {
  /** Highest id given so far, or passed over; 0 when none. */
  lastId(): Promise<number>;
  /** Gives no id up to this one any more. What had them elsewhere counts as forgotten. */
  passOver(upto: number): Promise<void>;
  /**
   * Writes all or none. The store gives the ids: whoever has read up to an id has missed nothing below it, because ids
   * are given in the order of the commits. None is ever given twice.
   * @returns the id of the first; the others follow it without a gap.
   * @throws StorageFull while the disk is nearly full.
   */
  append(events: readonly NewEvent[]): Promise<number>;
  /** What was kept with a change of a sandbox, and was never appended: a process ended in between. Oldest first. */
  untold(): Promise<NewEvent[]>;
  /** Oldest first, ids above `afterId`. Looks at some hundred events, however few of them are wanted. */
  list(filter: {
    afterId: number;
    types?: readonly EventType[];
    sandboxId?: string;
    ownerId?: string;
    limit: number;
  }): Promise<EventPage>;
  /** How many are kept, at the same cost however many that is. */
  kept(): Promise<number>;
  /** Forgets those from before, in slices, oldest first. @returns how many they were. */
  purge(old: { before: Date; signal?: AbortSignal }): Promise<number>;
  /** Keeps `keep` events; owners who have most give way, and of each the newest stay. */
  trim(keep: number): Promise<void>;
}
