import type { SandboxEnding } from "@alcove/wire";
import { abortable, ignoreOutcome } from "../../platform/abortable.ts";
import type { Logger } from "../../platform/logger.ts";
import { ToldInTurns } from "../../platform/told-in-turns.ts";
import type {
  Clock,
  InventoryEntry,
  RuntimeId,
  RuntimeProvider,
  SandboxId,
  SandboxOperations,
  SandboxRow,
} from "../../ports/index.ts";
import { Conflict, type DomainError, NotFound, Unavailable } from "../../ports/index.ts";
import { CurrentOperations } from "./current-operations.ts";
import { SandboxTally } from "./sandbox-tally.ts";

/** What this process is doing with a sandbox right now; one thing at a time. */
export type Work =
  /** Waiting for a place, or taking it: no sandbox yet. It becomes `spawn`, with the same `done`, once it has its place. */
  | { kind: "reserving"; done: Promise<void>; cancel(reason: Error): void }
  | { kind: "spawn"; done: Promise<void>; cancel(reason: Error): void }
  /** `nameFree`: from then on, at the end of the work at the latest, another sandbox may have its name. */
  | { kind: "destroy"; done: Promise<void>; nameFree: Promise<void> }
  /** Adopting, extending, cleaning up: short, and nothing to join. */
  | { kind: "other"; done: Promise<void> };

/**
 * A sandbox of this process. `row` mirrors the store, but for the environment, which it has none of: it changes only after the store has.
 * `operations` is there from a finished spawn or adoption until destroy begins or the runtime has ended; it stays while
 * the sandbox cannot be reached, because what runs in it may still be there.
 */
export interface LiveSandbox {
  row: SandboxRow;
  readonly provider: RuntimeProvider | undefined;
  /** The row's, but for a spawn whose provider gave another one that is not written down yet. `bind` changes it. */
  readonly runtimeId: RuntimeId;
  operations: SandboxOperations | undefined;
  work: Work | undefined;
  /** Questions in a row that it did not answer. */
  failedProbes: number;
  /** Its row comes from a store that is older, or may be: its expiry was true once, and may have been put off since. */
  outdated: boolean;
  /** Why its provider does not reach it: it was made at another place than the one that is asked now. */
  elsewhere: string | undefined;
}

/** Counted from when it is made until it is let go of, but for a spawn that has no place yet. */
class Entry implements LiveSandbox {
  readonly provider: RuntimeProvider | undefined;
  readonly proposedId: RuntimeId;
  runtimeId: RuntimeId;
  operations: SandboxOperations | undefined;
  failedProbes = 0;
  outdated = false;
  elsewhere: string | undefined;
  readonly #tally: SandboxTally;
  #row: SandboxRow;
  #work: Work | undefined;
  #held = true;
  #countedAs: SandboxRow | undefined;

  constructor(row: SandboxRow, provider: RuntimeProvider | undefined, tally: SandboxTally) {
    this.provider = provider;
    this.proposedId = row.runtimeId;
    this.runtimeId = row.runtimeId;
    this.#row = withoutEnv(row);
    this.#tally = tally;
    this.#count();
  }

  get row(): SandboxRow {
    return this.#row;
  }

  set row(row: SandboxRow) {
    this.#row = withoutEnv(row);
    this.#count();
  }

  get work(): Work | undefined {
    return this.#work;
  }

  set work(work: Work | undefined) {
    this.#work = work;
    this.#count();
  }

  letGo(): void {
    this.#held = false;
    this.#count();
  }

  #count(): void {
    const now = this.#held && this.#work?.kind !== "reserving" ? this.#row : undefined;
    if (now === this.#countedAs) return;
    this.#tally.move(this.#countedAs, now);
    this.#countedAs = now;
  }
}

const noEnv: Record<string, string> = {};

/** Its runtime has it, and nobody else asks for it: half a megabyte, in four thousand variables, takes more than one of memory. */
function withoutEnv(row: SandboxRow): SandboxRow {
  return { ...row, env: noEnv };
}

/** A sandbox that commands can run in. */
export interface RunningSandbox {
  row: SandboxRow;
  operations: SandboxOperations;
  provider: RuntimeProvider;
}

export interface SandboxListener {
  started(row: SandboxRow, operations: SandboxOperations, how: "spawned" | "adopted"): void;
  /** Somebody ends it, and waits for this: what is not seen now never will be. A failure is none of the sandbox's. */
  ending?(id: SandboxId): Promise<void> | undefined;
  /** @param how whether somebody ends it, or it ended by itself. */
  stopped(id: SandboxId, how: "destroyed" | "ended"): void;
}

/**
 * Every sandbox of the workers within reach that is not destroyed, in memory. An entry exists from before its row is written until after its row
 * is destroyed or removed, or in state error with nothing left of its runtime; so a runtime without an entry is wanted
 * by nobody.
 */
export class LiveSandboxes {
  /** How many there are, those in state error that memory no longer has included. */
  readonly tally = new SandboxTally();
  readonly #byId = new Map<string, Entry>();
  readonly #byRuntime = new Map<RuntimeId, Entry>();
  readonly #reserving = new Map<string, { work: Work & { kind: "reserving" }; ownerId: string }>();
  readonly #listeners = new Set<SandboxListener>();
  readonly #turns = new ToldInTurns();
  readonly #logger: Logger;
  readonly #clock: Pick<Clock, "now">;

  constructor(options: { logger: Logger; clock: Pick<Clock, "now"> }) {
    this.#logger = options.logger;
    this.#clock = options.clock;
  }

  add(row: SandboxRow, provider: RuntimeProvider | undefined): LiveSandbox {
    this.tally.backFromRow(row.id);
    this.#byId.get(row.id)?.letGo();
    const entry = new Entry(row, provider, this.tally);
    this.#byId.set(row.id, entry);
    this.#byRuntime.set(row.runtimeId, entry);
    return entry;
  }

  remove(entry: LiveSandbox): void {
    this.stop(entry);
    const held = this.#byId.get(entry.row.id);
    if (held !== entry) return;
    held.letGo();
    this.#byId.delete(held.row.id);
    this.#byRuntime.delete(held.proposedId);
    this.#byRuntime.delete(held.runtimeId);
  }

  /** As `remove`, and its row stays: in state error, with nothing left of its runtime. */
  leaveToRow(entry: LiveSandbox): void {
    const held = this.#byId.get(entry.row.id) === entry;
    this.remove(entry);
    if (held) this.tally.leftToRow(entry.row);
  }

  get(id: string): LiveSandbox | undefined {
    return this.#byId.get(id);
  }

  byRuntime(runtimeId: RuntimeId): LiveSandbox | undefined {
    return this.#byRuntime.get(runtimeId);
  }

  /**
   * The runtime of a spawn is called otherwise than was proposed; its row says so once it runs. The proposed id leads
   * to it too: an inventory that was taken during the spawn may name it.
   */
  bind(entry: LiveSandbox, runtimeId: RuntimeId): void {
    const held = this.#byId.get(entry.row.id);
    if (held !== entry) return;
    held.runtimeId = runtimeId;
    this.#byRuntime.set(runtimeId, held);
  }

  /** Whether a runtime belongs to a sandbox here, a spawn whose row may not say so yet included. */
  knows(runtime: Pick<InventoryEntry, "runtimeId" | "sandboxId">): boolean {
    return this.#byRuntime.has(runtime.runtimeId) || this.#creating(runtime) !== undefined;
  }

  /** The spawn that nobody works on any more whose sandbox this runtime is bound to. */
  leftBehind(runtime: Pick<InventoryEntry, "runtimeId" | "sandboxId">): LiveSandbox | undefined {
    const entry = this.#creating(runtime);
    return entry?.work === undefined ? entry : undefined;
  }

  #creating({ sandboxId }: Pick<InventoryEntry, "sandboxId">): LiveSandbox | undefined {
    const entry = sandboxId === undefined ? undefined : this.#byId.get(sandboxId);
    return entry?.row.state === "creating" ? entry : undefined;
  }

  /** A spawn begins to wait for its place. @returns how it stops. */
  waiting(id: SandboxId, ownerId: string, work: Work & { kind: "reserving" }): Disposable {
    this.#reserving.set(id, { work, ownerId });
    return { [Symbol.dispose]: () => this.#reserving.delete(id) };
  }

  /** What is being done with a sandbox, or with a spawn that has no place yet. */
  workOn(id: string): Work | undefined {
    return this.#byId.get(id)?.work ?? this.#reserving.get(id)?.work;
  }

  /** Whose it is, or the spawn that has no place yet; empty: nobody's. */
  ownerOf(id: string): string | undefined {
    return this.#byId.get(id)?.row.ownerId ?? this.#reserving.get(id)?.ownerId;
  }

  /**
   * Waits until `work` is done, however it ends. Every wait takes a turn of the event loop: whoever waits in a loop
   * for the next work to be done leaves the machine its time for what that work needs.
   */
  async finished(work: Work, signal?: AbortSignal): Promise<void> {
    await this.#turnAfter(work.done.catch(ignoreOutcome), signal);
  }

  /** As `finished`, and of a destroy only until the name is free: a runtime may wait long for its end. */
  async nameFreed(work: Work, signal: AbortSignal): Promise<void> {
    if (work.kind === "destroy") await this.#turnAfter(work.nameFree, signal);
    else await this.finished(work, signal);
  }

  async #turnAfter(done: Promise<void>, signal?: AbortSignal): Promise<void> {
    await (signal === undefined ? done : abortable(done, signal));
    await this.turn();
  }

  /** A later turn of the event loop, behind those who have waited for work to be done: of thousands some go on in one turn. */
  async turn(): Promise<void> {
    await new Promise<void>((resolve) => setImmediate(resolve));
    await new Promise<void>((resolve) => this.#turns.tell([resolve]));
  }

  all(): LiveSandbox[] {
    return [...this.#byId.values()];
  }

  get size(): number {
    return this.#byId.size;
  }

  /** Commands can run in it from now on. */
  start(entry: LiveSandbox, how: "spawned" | "adopted"): void {
    if (entry.provider === undefined) throw new Error("a sandbox without a provider cannot run");
    const operations = new CurrentOperations(entry.provider, entry.runtimeId);
    entry.operations = operations;
    this.#tell(entry, (listener) => listener.started(entry.row, operations, how));
  }

  /** Before `stop`, where somebody ends it. Takes as long as its listeners do; does not fail. */
  async lastLooks(entry: LiveSandbox): Promise<void> {
    if (entry.operations === undefined) return;
    const looks: (Promise<void> | undefined)[] = [];
    this.#tell(entry, (listener) => looks.push(listener.ending?.(entry.row.id)));
    if (looks.some((look) => look !== undefined)) await Promise.allSettled(looks);
  }

  /** Its runtime has ended or is about to be: commands can never run in it again. */
  stop(entry: LiveSandbox): void {
    if (entry.operations === undefined) return;
    entry.operations = undefined;
    const how = entry.work?.kind === "destroy" ? "destroyed" : "ended";
    this.#tell(entry, (listener) => listener.stopped(entry.row.id, how));
  }

  subscribe(listener: SandboxListener): () => void {
    this.#listeners.add(listener);
    return () => this.#listeners.delete(listener);
  }

  /**
   * Marks a sandbox as being worked on while `task` runs. The caller has seen that nothing else works on it.
   * @param task calls `nameFree` when the name is free before it is done.
   */
  async work(
    entry: LiveSandbox,
    kind: "destroy" | "other",
    task: (nameFree: () => void) => Promise<void>,
  ): Promise<void> {
    const freed = Promise.withResolvers<void>();
    const done = Promise.resolve().then(() => task(freed.resolve));
    const work: Work = kind === "destroy" ? { kind, done, nameFree: freed.promise } : { kind, done };
    entry.work = work;
    try {
      await done;
    } finally {
      freed.resolve();
      if (entry.work === work) entry.work = undefined;
    }
  }

  /** A listener's own failure is none of the sandbox's. */
  #tell(entry: LiveSandbox, call: (listener: SandboxListener) => void): void {
    for (const listener of this.#listeners) {
      try {
        call(listener);
      } catch (error) {
        this.#logger.error({ sandbox_id: entry.row.id, err: error }, "a listener of sandboxes failed");
      }
    }
  }

  /** @throws NotFound, Conflict or Unavailable: what keeps commands from running in it. */
  running(id: string): RunningSandbox {
    const entry = this.#byId.get(id);
    if (entry === undefined) throw sandboxNotFound(id);
    const { row, operations, provider } = entry;
    const isUsable = row.state === "running" && !row.destroyRequested;
    if (!isUsable || operations === undefined || provider === undefined) throw notRunning(row);
    // It may be a moment until that is written down.
    if (!hasTimeLeft(entry, this.#clock.now())) throw hasExpired(row);
    return { row, operations, provider };
  }
}

/** Whether its time has not come, as far as that is known. */
export function hasTimeLeft({ row, outdated }: Pick<LiveSandbox, "row" | "outdated">, now: Date): boolean {
  return row.state !== "expired" && (outdated || row.expiresAt > now);
}

/** Its runtime should be there, and stay. */
export function mayRun(row: SandboxRow): boolean {
  return (row.state === "running" || row.state === "unhealthy") && !row.destroyRequested;
}

function hasExpired(row: SandboxRow): Conflict {
  return ends(row, "expired", `expired at ${row.expiresAt.toISOString()}`);
}

/** A refusal for a sandbox that nothing can be done in any more. */
export function ends(row: SandboxRow, ending: SandboxEnding, how: string): Conflict {
  const at = ending === "expired" ? { sandbox_ended_at: row.expiresAt.toISOString() } : {};
  return new Conflict(`sandbox "${row.id}" ${how}`, { details: { sandbox_ended: ending, ...at } });
}

export function sandboxGone(row: SandboxRow): NotFound {
  const { destroyedAt, expiresAt } = row;
  const expired = destroyedAt !== null && expiresAt <= destroyedAt;
  const ending: SandboxEnding = expired ? "expired" : "destroyed";
  const at = (expired ? expiresAt : (destroyedAt ?? row.updatedAt)).toISOString();
  const how = expired ? `it expired at ${at}` : `it was destroyed at ${at}`;
  return new NotFound(`sandbox "${row.id}" does not exist any more: ${how}`, {
    what: "sandbox",
    details: { sandbox_ended: ending, sandbox_ended_at: at },
  });
}

export function sandboxNotFound(id: string): NotFound {
  // By what was asked alone: whether there is one must not be told to who may not know.
  const hint = id.startsWith("sb-")
    ? ""
    : "; ids begin with sb-: GET /sandboxes?name=… finds a sandbox by its name, as POST /sandboxes/acquire does";
  return new NotFound(`sandbox "${id}" does not exist or was destroyed${hint}`, { what: "sandbox" });
}

/** Nobody here can tell more of it, or end it. A destroyed one is gone for all. */
export function workerUnavailable(row: SandboxRow): DomainError {
  if (row.state === "destroyed") return sandboxGone(row);
  return new Unavailable(`worker "${row.workerId}" of sandbox "${row.id}" does not answer`);
}

/** What keeps commands from running in a sandbox that this row tells of. */
export function notRunning(row: SandboxRow): DomainError {
  const name = `sandbox "${row.id}"`;
  if (row.state === "destroyed") return sandboxGone(row);
  if (row.destroyRequested && row.state !== "expired") return ends(row, "destroyed", "is being destroyed");
  switch (row.state) {
    case "creating":
      return new Conflict(`${name} is still being created`);
    case "expired":
      return hasExpired(row);
    case "error":
      return ends(row, "error", `is in state error: ${row.error ?? "its runtime ended"}`);
    case "unhealthy":
      return new Unavailable(`${name} cannot be reached now: ${row.error ?? "its provider does not answer"}`);
    case "running":
      return new Unavailable(`${name} is not connected yet; try again in a moment`);
    default:
      return row.state satisfies never;
  }
}
