import { abortable, ignoreOutcome } from "../../platform/abortable.ts";
import { boundedParallel } from "../../platform/bounded-parallel.ts";
import { deadlineAfter, ShuttingDown } from "../../platform/deadline.ts";
import { restoredAt } from "../../platform/installation.ts";
import type { Logger } from "../../platform/logger.ts";
import { messageOf } from "../../platform/message-of.ts";
import { outsideRequests } from "../../platform/request-scope.ts";
import type {
  Clock,
  EventSink,
  InventoryEntry,
  LiveState,
  NetworkChange,
  RuntimeId,
  RuntimeProvider,
  SandboxRow,
  Store,
  Timer,
} from "../../ports/index.ts";
import type { OperationMetrics } from "../diagnostics/operation-metrics.ts";
import type { ProviderRegistry } from "../providers/provider-registry.ts";
import type { SandboxLifecycle } from "../sandboxes/compose.ts";
import { type LiveSandbox, mayRun } from "../sandboxes/live-sandboxes.ts";
import { type Finding, isLeftBehind, judge, judgeWithoutProvider } from "./judge.ts";
import { tellNetworkChange } from "./network-changes.ts";
import { ProviderPlaces } from "./provider-places.ts";
import { ReadExpiries } from "./read-expiries.ts";
import type { Retention } from "./retention.ts";
import { RetrySchedule } from "./retry-schedule.ts";
import { type Recovery, StoreAge } from "./store-age.ts";
import { UnknownRuntimes } from "./unknown-runtimes.ts";

export interface ReconcilerOptions {
  lifecycle: SandboxLifecycle;
  registry: ProviderRegistry;
  store: Store;
  clock: Clock;
  events: EventSink;
  logger: Logger;
  /** How long sandboxes that failed are kept. */
  retentionMs: number;
  /** The store may lack sandboxes that run. */
  recovery?: Recovery;
  retention: Pick<Retention, "pass">;
  operations: Pick<OperationMetrics, "incidents">;
  intervalMs?: number;
}

/** What is repeated: a provider's passes, and what belongs to no provider. */
type Loop = RuntimeProvider | "housekeeping" | "retention";

/** Steps at once that end with the store, of one provider. */
const parallelSteps = 8;
/** Sandboxes asked at once, of one provider: those that do not answer must not keep the others waiting. */
const parallelProbes = 64;

const inventoryDeadlineMs = 30_000;
/** How soon a provider that did not answer is asked again, and what failed altogether is repeated. */
const unansweredPauseMs = 5_000;
const failedPauseMs = 1_000;
/** How soon what is old and was left is gone on with. */
const retentionPauseMs = 1_000;
/** A sandbox that did not answer is asked again after this time, then twice as long each time. */
const firstProbePauseMs = 500;
const longestProbePauseMs = 60_000;

/**
 * Makes what runs and what the store wants the same again: once at the start, every minute, when a runtime ends by
 * itself, and for destroys that failed. Each provider has passes of its own, so that none waits for another. `ready`
 * resolves when the default provider takes spawns: memory holds what the store has, and what the provider runs is known.
 * Its sandboxes are adopted behind that.
 *
 * A pass begins ends and waits for none: the end lanes let their runtimes in by turns, so that the slow ends of one owner
 * hold up neither the pass nor those of others.
 *
 * Passes race with spawns and destroys of this process without locks: an inventory is taken first, and what is done
 * about an entry is decided afterwards, from memory, in one synchronous step that also claims the sandbox. Memory knows
 * a sandbox from before its row exists until after it is destroyed; so a runtime of the inventory that memory does
 * not know is wanted by nobody. A sandbox counts as vanished only when it ran before the inventory was taken.
 */
export class Reconciler implements AsyncDisposable {
  readonly ready: Promise<void>;
  readonly #options: Omit<Required<ReconcilerOptions>, "recovery"> & Pick<ReconcilerOptions, "recovery">;
  readonly #retries: RetrySchedule;
  readonly #stopListening: (() => void)[] = [];
  /** When sandboxes that did not answer are asked again; until then passes leave them alone. */
  readonly #probes = new Map<LiveSandbox, Timer>();
  /** What comes next of each loop. */
  readonly #timers = new Map<Loop, Timer>();
  readonly #passes = new Map<RuntimeProvider, Promise<boolean>>();
  readonly #age: StoreAge;
  readonly #expiries: ReadExpiries;
  readonly #unknown: UnknownRuntimes;
  readonly #places: ProviderPlaces;
  /** Providers that did not answer when they were asked last, and what was logged of it. */
  readonly #unlisted = new Map<RuntimeProvider, string>();
  readonly #background = new Set<Promise<void>>();
  /** Ends that passes have begun, by what is ended: an orphan's runtime, remains of a sandbox, failed sandboxes that are not kept. */
  readonly #ends = new Map<LiveSandbox | RuntimeId | "failed", Promise<void>>();
  readonly #closing = new AbortController();
  #loading: Promise<void> | undefined;
  #started = false;
  #closed = false;

  constructor(options: ReconcilerOptions) {
    this.#options = { intervalMs: 60_000, ...options };
    const { lifecycle, registry, recovery, store, clock, events, logger } = options;
    const { gates, live, expiry } = lifecycle;
    const expiries = new ReadExpiries({ live, expiry, clock });
    this.#expiries = expiries;
    const onTold = (age: "newest" | "older") => expiries.told(age);
    this.#age = new StoreAge({ providers: registry.all, recovery, store, logger, onTold });
    this.#places = new ProviderPlaces({ store, logger, now: () => clock.now() });
    this.#unknown = new UnknownRuntimes({
      lifecycle,
      age: this.#age,
      events,
      logger,
      end: (runtimeId, end) => this.#end(runtimeId, end),
      onFailure: (error, runtime) => this.#logFailure(error, sandboxOf(runtime)),
    });
    this.ready = gates.ofProvider(options.registry.default()).ready;
    this.#retries = new RetrySchedule({ clock: options.clock, onDue: (id) => this.#repeatDestroy(id) });
  }

  /** Starts the passes; none ever fails, `ready` tells when spawns are taken. */
  start(): void {
    if (this.#started) return;
    this.#started = true;
    const { lifecycle, registry, intervalMs } = this.#options;
    lifecycle.onUnfinished((entry) => this.#retries.failed(entry.row.id));
    lifecycle.onProbeFailed((entry) => this.#probeLater(entry));
    lifecycle.onRemains((entry) => this.#end(entry, () => lifecycle.recover.removeRemains(entry)));
    for (const provider of registry.all) {
      this.#stopListening.push(
        provider.onExit((id, reason) => outsideRequests(() => this.#exited(id, reason))),
      );
      // What notices it was begun by a request, long ago.
      const stop = provider.onNetwork?.((id, change) =>
        outsideRequests(() => this.#networkChanged(id, change)),
      );
      if (stop !== undefined) this.#stopListening.push(stop);
      this.#repeat(provider, async () => ((await this.#passOf(provider)) ? intervalMs : unansweredPauseMs));
    }
    this.#repeat("housekeeping", async () => {
      await this.#keepHouse();
      return intervalMs;
    });
    this.#repeat("retention", async () => {
      // What spawns wait for at the start comes first.
      await this.#loading?.catch(() => undefined);
      return (await this.#options.retention.pass(this.#closing.signal)) ? intervalMs : retentionPauseMs;
    });
  }

  /** A whole pass over every provider; joins those under way, and waits for the ends that were begun. */
  async reconcile(): Promise<void> {
    await Promise.all(this.#options.registry.all.map((provider) => this.#passOf(provider)));
    await this.#keepHouse();
    await this.#options.retention.pass(this.#closing.signal);
    await Promise.all(this.#ends.values());
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#closed = true;
    this.#closing.abort(new ShuttingDown());
    this.#options.lifecycle.recover.close(new ShuttingDown());
    this.#options.lifecycle.destroys.close();
    this.#retries[Symbol.dispose]();
    for (const timer of [...this.#timers.values(), ...this.#probes.values()]) timer.cancel();
    this.#timers.clear();
    this.#probes.clear();
    for (const stop of this.#stopListening.splice(0)) stop();
    await Promise.allSettled([...this.#passes.values(), ...this.#background]);
    await Promise.all(this.#ends.values());
  }

  /** Runs a task now and again after the pause it asks for. */
  #repeat(name: Loop, task: () => Promise<number>): void {
    const once = async () => {
      let pauseMs = failedPauseMs;
      try {
        pauseMs = await task();
      } catch (error) {
        // A store that cannot be read leaves spawns waiting: without it nothing can be promised.
        if (!this.#closed)
          this.#options.logger.error({ err: error }, "reconciliation failed; it is repeated");
      }
      if (this.#closed) return;
      this.#timers.set(
        name,
        this.#options.clock.setTimer(pauseMs, () => this.#run(once())),
      );
    };
    this.#run(once());
  }

  /** @returns whether the provider answered. */
  #passOf(provider: RuntimeProvider): Promise<boolean> {
    const known = this.#passes.get(provider);
    if (known !== undefined) return known;
    const pass = this.#reconcileProvider(provider).finally(() => this.#passes.delete(provider));
    this.#passes.set(provider, pass);
    return pass;
  }

  async #keepHouse(): Promise<void> {
    const { clock, retentionMs, lifecycle, registry } = this.#options;
    const { live, failed } = lifecycle;
    await this.#load();
    const without = live.all().filter((entry) => entry.provider === undefined);
    await this.#forEach(without, parallelSteps, (entry) =>
      this.#act(entry, judgeWithoutProvider(entry, registry.absence(entry.row.provider))),
    );
    this.#retries.keepOnly((id) => live.get(id) !== undefined);
    const failedBefore = new Date(clock.now().getTime() - retentionMs);
    this.#end("failed", async () => {
      await failed.sweep({ signal: this.#closing.signal, failedBefore });
    });
  }

  /** Brings memory and store together; those who ask while it is under way share it. */
  #load(): Promise<void> {
    this.#loading ??= this.#loadNow().finally(() => {
      this.#loading = undefined;
    });
    return this.#loading;
  }

  /** Rows memory does not know, and entries that differ from their row. */
  async #loadNow(): Promise<void> {
    const { lifecycle, store, registry } = this.#options;
    const { live, recover, gates } = lifecycle;
    const missing = new Set(live.all());
    const differing: LiveSandbox[] = [];
    for await (const slice of store.sandboxes.liveStates()) {
      for (const stored of slice) {
        if (!registry.reaches(stored)) continue;
        const entry = live.get(stored.id);
        if (entry === undefined) await this.#loadRow(stored);
        else if (missing.delete(entry) && !sameRow(entry.row, stored)) differing.push(entry);
      }
    }
    gates.loaded.open();
    await this.#forEach([...differing, ...missing], parallelSteps, (entry) => recover.resync(entry));
  }

  async #loadRow({ id, state }: LiveState): Promise<void> {
    const { lifecycle, store, registry } = this.#options;
    const { live, gates } = lifecycle;
    // Nothing is left of its runtime, or memory would know it.
    if (state === "error" && gates.loaded.opened) return;
    // Destroyed since the slice was read, perhaps: memory forgets only after the store has changed.
    const row = await store.sandboxes.get(id);
    if (row === undefined || row.state === "destroyed" || live.get(id) !== undefined) return;
    this.#expiries.read(live.add(row, registry.find(row)), this.#age.current);
  }

  async #reconcileProvider(provider: RuntimeProvider): Promise<boolean> {
    const { lifecycle, registry, store, logger } = this.#options;
    const { live, gates } = lifecycle;
    const age = this.#age;
    const gate = gates.ofProvider(provider);
    const first = !gate.opened;
    await this.#load();
    const ours = live.all().filter((entry) => entry.provider === provider);
    const endingOrphans = [...this.#ends.keys()].filter((ended) => typeof ended === "string");
    const ranBefore = new Set(ours.filter(({ row }) => row.state !== "creating").map(({ row }) => row.id));
    const restored = await store.setting(restoredAt);
    const restoredOn = restored === undefined ? undefined : new Date(restored);
    // What was left behind by a restore is nowhere that this one could ask.
    const placed = () =>
      live
        .all()
        .filter(({ row }) => ranBefore.has(row.id))
        .filter((entry) => entry.provider === provider && !isLeftBehind(entry.row, restoredOn));
    // Before anything is made at a new place, or ended there that is not there.
    const doubtful = await this.#places.doubtful(provider, placed());
    if (doubtful !== undefined) tellElsewhere(provider, placed(), doubtful);
    await this.#places.writtenDown(provider);
    let inventory: InventoryEntry[];
    try {
      using deadline = deadlineAfter(inventoryDeadlineMs, this.#closing.signal);
      inventory = await abortable(provider.inventory(deadline), deadline.signal);
    } catch (error) {
      if (this.#closed) return false;
      registry.inventoryTaken(provider.name, { error: `its runtimes cannot be listed: ${messageOf(error)}` });
      this.#logUnlisted(provider, error);
      age.silent(provider);
      gate.open();
      const why = `provider "${provider.name}" does not answer: ${messageOf(error)}`;
      await this.#forEach(ours, parallelProbes, (entry) => this.#act(entry, { kind: "unreachable", why }));
      return false;
    }
    if (this.#unlisted.delete(provider))
      logger.info({ provider: provider.name }, "a provider's runtimes can be listed again");
    registry.inventoryTaken(provider.name, { count: inventory.length });
    const byRuntime = new Map(inventory.map((entry) => [entry.runtimeId, entry]));
    for (const runtime of inventory) {
      const left = live.leftBehind(runtime);
      if (left?.provider === provider && !byRuntime.has(left.runtimeId)) live.bind(left, runtime.runtimeId);
    }
    tellElsewhere(provider, placed(), await this.#places.away(provider, placed(), byRuntime));
    const known = live.all().filter((entry) => entry.provider === provider);
    // What was known before the inventory has been ended since by its own destroy; an orphan may have been too.
    const endedSince = new Set<string>([...ours.map(({ runtimeId }) => runtimeId), ...endingOrphans]);
    const unknown = inventory.filter((runtime) => !live.knows(runtime) && !endedSince.has(runtime.runtimeId));
    const ofOthers = (runtimes: readonly InventoryEntry[]) =>
      runtimes.filter((runtime) => !lifecycle.recover.isLeftOver(runtime));
    await age.hear(provider, ofOthers(unknown));
    // Sandboxes that only their runtimes know are taken in before new ones may take their place.
    if (age.current !== "older") gate.open();
    const judged = (entry: LiveSandbox) =>
      judge(entry, {
        age: age.current,
        runtime: byRuntime.get(entry.runtimeId) ?? awayOf(entry),
        ranBefore: ranBefore.has(entry.row.id),
        endedWithProcess: first && provider.inProcess === true && ranBefore.has(entry.row.id),
        now: this.#options.clock.now(),
        restoredAt: restoredOn,
      });
    // Each is judged in its turn, from what memory says then.
    const actOn = (take: "step" | "probe" | "vanished") => async (entry: LiveSandbox) => {
      const finding = judged(entry);
      if (takes(entry, finding) === take) await this.#act(entry, finding);
    };
    const probe = (entries: readonly LiveSandbox[]) => this.#forEach(entries, parallelProbes, actOn("probe"));
    const settle = (entries: readonly LiveSandbox[]) =>
      Promise.all([
        this.#forEach(entries, parallelProbes, actOn("vanished")),
        this.#forEach(entries, parallelSteps, actOn("step")),
      ]);
    // What other providers say may show that those are not over, or that all may live longer.
    const [looked, doubted] = [age.current, new Set(known.filter((entry) => entry.outdated))];
    const judgeAnew = async () => {
      await age.told(this.#closing.signal);
      if (age.current !== looked) await probe(known.filter((entry) => doubted.has(entry) || entry.outdated));
    };
    const settleUnknown = async () => {
      await age.told(this.#closing.signal);
      const settled = await this.#unknown.settle(provider, unknown, this.#closing.signal);
      gate.open();
      return settled;
    };
    // Those that have ended give up their names, which younger ones may have.
    const [settled] = await Promise.all([settle(known).then(settleUnknown), probe(known).then(judgeAnew)]);
    if (settled) await age.complete(provider, ofOthers(inventory));
    return settled;
  }

  /** It is asked every few seconds: what has been said of it is not said again. */
  #logUnlisted(provider: RuntimeProvider, error: unknown): void {
    const message = messageOf(error);
    if (this.#unlisted.get(provider) === message) return;
    this.#unlisted.set(provider, message);
    this.#options.logger.error(
      { provider: provider.name, err: error },
      "a provider's runtimes cannot be listed",
    );
  }

  /** What takes the end of a runtime is begun, and not waited for. */
  async #act(entry: LiveSandbox, finding: Finding): Promise<void> {
    const { destroys, recover } = this.#options.lifecycle;
    if (entry.work !== undefined || this.#closed) return;
    switch (finding.kind) {
      case "leave":
        return;
      case "undo":
        if (!this.#retries.isDue(entry.row.id)) return;
        this.#end(entry, () => destroys.undo(entry, { destroyed: entry.row.destroyRequested, inLine: true }));
        return;
      case "destroy":
        if (!this.#retries.isDue(entry.row.id)) return;
        this.#end(entry, () => destroys.begin(entry, finding.reason, { inLine: true }));
        return;
      case "adopt":
        if (entry.provider !== undefined && !this.#probes.has(entry))
          await recover.adopt(entry, entry.provider);
        return;
      case "adopt_longer":
        await recover.prolong(entry);
        return this.#act(entry, { kind: "adopt" });
      case "vanished":
        await recover.vanished(entry, finding.why, { leftBehind: finding.leftBehind === true });
        return;
      case "remains":
        this.#end(entry, () => recover.removeRemains(entry));
        return;
      case "over":
        destroys.leaveToRow(entry);
        return;
      case "unreachable":
        if (!entry.row.destroyRequested && !this.#probes.has(entry))
          await recover.unreachable(entry, finding.why);
        return;
      default:
        finding satisfies never;
    }
  }

  /** A sandbox did not answer: it is asked again, however long until the next pass. */
  #probeLater(entry: LiveSandbox): void {
    const { live, recover } = this.#options.lifecycle;
    if (this.#closed || this.#probes.has(entry)) return;
    const pauseMs = Math.min(firstProbePauseMs * 2 ** (entry.failedProbes - 1), longestProbePauseMs);
    const timer = this.#options.clock.setTimer(pauseMs, () => {
      this.#probes.delete(entry);
      if (live.get(entry.row.id) !== entry || entry.provider === undefined || !mayRun(entry.row)) return;
      this.#run(
        recover
          .adopt(entry, entry.provider)
          .catch((error: unknown) => this.#logFailure(error, sandboxOf(entry))),
      );
    });
    this.#probes.set(entry, timer);
  }

  /** A provider says that a runtime ended by itself. One that is to end is not looked for: its end is confirmed, or fails again. */
  #exited(runtimeId: RuntimeId, reason: string): void {
    const { lifecycle, logger } = this.#options;
    const entry = lifecycle.live.byRuntime(runtimeId);
    if (entry === undefined || this.#closed) return;
    this.#run(
      this.#settled(entry)
        .then(() => {
          if (entry.row.destroyRequested) this.#retries.hasten(entry.row.id);
          else return lifecycle.recover.suspected(entry, reason);
        })
        .catch((error: unknown) =>
          logger.error(
            { sandbox_id: entry.row.id, err: error },
            "the end of a runtime could not be recorded",
          ),
        ),
    );
  }

  #networkChanged(runtimeId: RuntimeId, change: NetworkChange): void {
    const entry = this.#options.lifecycle.live.byRuntime(runtimeId);
    if (entry !== undefined && !this.#closed) tellNetworkChange(entry.row, change, this.#options);
  }

  /** Waits until nothing works on a sandbox, or the service stops: what works on it then may wait for its turn in a long line. */
  async #settled(entry: LiveSandbox): Promise<void> {
    const { live } = this.#options.lifecycle;
    while (entry.work !== undefined && !this.#closed)
      await live.finished(entry.work, this.#closing.signal).catch(ignoreOutcome);
  }

  #repeatDestroy(id: string): void {
    const entry = this.#options.lifecycle.live.get(id);
    if (entry === undefined || this.#closed) return;
    const repeat = async () => {
      await this.#settled(entry);
      if (entry.row.state === "destroyed" || this.#options.lifecycle.live.get(id) !== entry) return;
      await this.#act(
        entry,
        entry.row.state === "creating" ? { kind: "undo" } : { kind: "destroy", reason: "reconciled" },
      );
    };
    this.#run(repeat().catch(ignoreOutcome));
  }

  /** A failure with one does not keep the others from their turn; it has been logged or is logged here. */
  async #forEach<T>(items: readonly T[], limit: number, task: (item: T) => Promise<void>): Promise<void> {
    await boundedParallel(items, limit, async (item) => {
      try {
        await task(item);
      } catch (error) {
        this.#logFailure(error, sandboxOf(item));
      }
    });
  }

  #logFailure(error: unknown, of: { sandbox_id?: string; runtime_id?: string } = {}): void {
    if (this.#closed && error instanceof ShuttingDown) return;
    if (this.#options.lifecycle.destroys.hasTold(error)) return;
    this.#options.logger.warn(
      { ...of, error: messageOf(error), err: error },
      "reconciliation of one sandbox failed; it is repeated",
    );
  }

  /** Begins an end unless it is under way; one that fails has been logged or is logged here, and a later pass repeats it. */
  #end(ended: LiveSandbox | RuntimeId | "failed", end: () => Promise<void>): void {
    if (this.#closed || this.#ends.has(ended)) return;
    const done = end()
      .catch((error: unknown) => this.#logFailure(error, sandboxOf(ended)))
      .finally(() => this.#ends.delete(ended));
    this.#ends.set(ended, done);
  }

  #run(task: Promise<void>): void {
    this.#background.add(task);
    void task.finally(() => this.#background.delete(task));
  }
}

/** Which sandbox a line of the log is about, as far as what was worked on says. */
function sandboxOf(item: unknown): { sandbox_id?: string; runtime_id?: string } {
  if (typeof item === "string" && item !== "failed") return { runtime_id: item };
  if (typeof item !== "object" || item === null) return {};
  if ("row" in item) {
    const { row, runtimeId } = item as LiveSandbox;
    return { sandbox_id: row.id, runtime_id: runtimeId };
  }
  const { runtimeId, sandboxId } = item as Partial<InventoryEntry>;
  return {
    ...(sandboxId === undefined ? {} : { sandbox_id: sandboxId }),
    ...(runtimeId === undefined ? {} : { runtime_id: runtimeId }),
  };
}

/** "probe": it asks a sandbox something, and may have to wait for it. */
function takes({ operations }: LiveSandbox, { kind }: Finding): "step" | "probe" | "vanished" {
  if (kind === "vanished" && operations === undefined) return kind;
  const asks = kind === "adopt" || kind === "adopt_longer" || kind === "vanished" || kind === "unreachable";
  return asks ? "probe" : "step";
}

function sameRow(row: SandboxRow, stored: LiveState): boolean {
  return stored.state === row.state && stored.updatedAt.getTime() === row.updatedAt.getTime();
}

/**
 * Tells those apart that a provider does not list because it is asked at another place now, or may be. Their owners read it: where
 * that is, and by which key, the log says.
 */
function tellElsewhere(
  { name }: RuntimeProvider,
  entries: readonly LiveSandbox[],
  away: ReadonlyMap<RuntimeId, string>,
): void {
  for (const entry of entries) {
    entry.elsewhere = away.has(entry.runtimeId)
      ? `it was made at another backend or account than the one that provider "${name}" asks now, which is not known to have it; it goes on once the operator configures that one again (the service's log names both), or until it has ended itself`
      : undefined;
  }
}

function awayOf({ elsewhere, runtimeId }: LiveSandbox): InventoryEntry | undefined {
  return elsewhere === undefined ? undefined : { runtimeId, state: "elsewhere" };
}
