import { abortable } from "../../platform/abortable.ts";
import { deadlineAfter } from "../../platform/deadline.ts";
import { messageOf } from "../../platform/message-of.ts";
import {
  type InventoryEntry,
  noCapacityLimits,
  RuntimeElsewhere,
  RuntimeGone,
  type RuntimeProvider,
  type SandboxId,
  type SandboxNote,
  type SandboxOperations,
  type SandboxRow,
  Unavailable,
} from "../../ports/index.ts";
import { ownerData } from "../events/owner-data.ts";
import type { SandboxDefaults } from "../quotas/sandbox-defaults.ts";
import { expiresInMs, probeDeadlineMs, type SandboxContext } from "./context.ts";
import type { DestroyFlow } from "./destroy-flow.ts";
import { FreshInventories } from "./fresh-inventories.ts";
import { hasTimeLeft, type LiveSandbox, mayRun } from "./live-sandboxes.ts";
import { endsItselfUntilTold, tellSwitch } from "./own-switch.ts";
import { pause } from "./pause.ts";
import { logSandbox } from "./sandbox-log.ts";
import { longestTtlMs } from "./spawn-plan.ts";

/** So many questions in a row may go unanswered before a sandbox counts as unhealthy, less one. */
const probesBeforeUnhealthy = 2;
/** Between two looks at a sandbox whose provider has not said yet whether it runs, milliseconds. */
const namePauseMs = 100;

/**
 * What happens to sandboxes that nobody asked anything of. Each method leaves a sandbox alone that is worked on.
 *
 * A sandbox that does not answer has not ended: it keeps its commands and their readers, nothing is told, and after a
 * second question without an answer its state says `unhealthy`. Only the inventory of its provider says that its
 * runtime has ended; broken connections and refusals are reasons to look there.
 */
export class RecoverFlow {
  readonly #context: SandboxContext;
  readonly #destroys: DestroyFlow;
  readonly #inventories: FreshInventories;
  readonly #closing = new AbortController();
  readonly #onProbeFailed: (entry: LiveSandbox) => void;
  readonly #onRemains: (entry: LiveSandbox) => void;

  constructor(
    context: SandboxContext,
    options: {
      destroys: DestroyFlow;
      onProbeFailed: (entry: LiveSandbox) => void;
      /** Has `removeRemains` called, without waiting for it. */
      onRemains: (entry: LiveSandbox) => void;
    },
  ) {
    this.#context = context;
    this.#destroys = options.destroys;
    this.#onProbeFailed = options.onProbeFailed;
    this.#onRemains = options.onRemains;
    this.#inventories = new FreshInventories({ signal: this.#closing.signal });
  }

  /** Ends what waits for an answer; what was asked in vain counts for nothing. */
  close(reason: Error): void {
    this.#closing.abort(reason);
  }

  /** Its runtime is alive: reconnects when needed and tells it when to end itself. */
  adopt(entry: LiveSandbox, provider: RuntimeProvider): Promise<void> {
    return this.#reach(entry, () => this.#connect(entry, provider));
  }

  /**
   * A runtime of this process without a row is what a spawn left that was taken back, or says so falsely: no store of a
   * process is older than what it makes.
   */
  isLeftOver({ note }: InventoryEntry): boolean {
    return note?.birth?.run === this.#context.run;
  }

  /**
   * A runtime that runs and is ours, but is lacking in the store, which was lost or is an older one: its record says
   * which sandbox it is.
   * @param options.names how long its name may be waited for.
   * @returns false when it says too little, or the sandbox is known with another runtime.
   */
  async takeIn(
    provider: RuntimeProvider,
    runtime: InventoryEntry,
    options: { names: AbortSignal },
  ): Promise<boolean> {
    const { live, store, expiry, events, logger, defaults, deadmanGraceMs, clock, workerId, fence } =
      this.#context;
    const { sandboxId, runtimeId, note } = runtime;
    if (sandboxId === undefined || (await store.sandboxes.get(sandboxId)) !== undefined) return false;
    const now = clock.now();
    const row = recoveredRow({
      sandboxId,
      runtimeId,
      provider: provider.name,
      workerId,
      note,
      now,
      defaults,
      deadmanGraceMs,
    });
    const entry = live.add(row, provider);
    try {
      await live.work(entry, "other", async () => {
        // It runs already, so no limit keeps it out; a name that another has by now stays with that one.
        const taken = { row, limits: noCapacityLimits, fence };
        let result = await store.sandboxes.reserve(taken);
        while (!result.admitted && result.reason === "name_taken") {
          const { sandboxId: holder } = result;
          if (!(await this.#nameMayBeFree(holder, options.names))) {
            logger.warn(
              { sandbox_id: row.id, name: row.name, holder, ...ownerData(row.ownerId) },
              "a sandbox was taken in without its name, which another one of its owner has",
            );
            break;
          }
          result = await store.sandboxes.reserve(taken);
        }
        if (result.admitted) return;
        const unnamed = { ...row, name: null };
        entry.row = unnamed;
        await store.sandboxes.reserve({ ...taken, row: unnamed });
      });
    } catch (error) {
      live.remove(entry);
      throw error;
    }
    expiry.set(row.id, row.expiresAt);
    logSandbox(
      logger,
      row,
      { event: "sandbox.recover", outcome: "ok" },
      "a sandbox that the database does not know was taken in from its runtime's record",
    );
    this.#context.operations.incidents.sandboxRecovered();
    const data = { action: "recovered_sandbox", provider: provider.name, image: row.image };
    events.emit({ type: "reconcile.action", sandboxId: row.id, ownerId: row.ownerId, data });
    await this.adopt(entry, provider);
    return true;
  }

  /**
   * Waits while a sandbox of an older store may turn out to have ended, whose name a younger one has by now.
   * @returns false once it keeps its name, or the wait is over.
   */
  async #nameMayBeFree(holder: SandboxId, signal: AbortSignal): Promise<boolean> {
    const { live, clock } = this.#context;
    const entry = live.get(holder);
    if (entry === undefined || signal.aborted) return false;
    if (entry.work === undefined && !entry.outdated && hasTimeLeft(entry, clock.now())) return false;
    try {
      if (entry.work !== undefined) await live.nameFreed(entry.work, signal);
      else await pause(clock, namePauseMs, signal);
      return true;
    } catch {
      return false;
    }
  }

  /**
   * It runs, and the store is an older one: how often it was extended since nobody knows, so that it lives at least as
   * long as a new one would.
   */
  async prolong(entry: LiveSandbox): Promise<void> {
    const { live, store, expiry, clock, defaults, logger } = this.#context;
    const now = clock.now();
    const expiresAt = new Date(now.getTime() + defaults.ttlMs);
    if (entry.work !== undefined) return;
    if (entry.row.expiresAt >= expiresAt) {
      entry.outdated = false;
      expiry.set(entry.row.id, entry.row.expiresAt);
      return;
    }
    await live.work(entry, "other", async () => {
      const until = endsItselfUntilTold(entry.row, expiresAt, this.#context);
      const change = { expiresAt, endsItselfAt: until, updatedAt: now };
      const row = await store.sandboxes.update(
        entry.row.id,
        ["running", "unhealthy"],
        change,
        this.#context.fence,
      );
      if (row === undefined) return;
      entry.row = row;
      entry.outdated = false;
      expiry.set(row.id, row.expiresAt);
      logSandbox(
        logger,
        row,
        { event: "sandbox.extend", outcome: "ok" },
        `the database is older than the sandbox's last expiry may be: it lives until ${row.expiresAt.toISOString()}`,
      );
    });
  }

  /** Its provider does not answer: a sandbox that still answers by itself stays as it is. */
  async unreachable(entry: LiveSandbox, why: string): Promise<void> {
    await this.#reach(entry, async () => {
      if (entry.operations === undefined) throw new Unavailable(why);
      await this.#tellExpiry(entry, entry.operations);
    });
  }

  /** Something says that its runtime has ended: it has if the inventory says so too; otherwise it is adopted anew. */
  async suspected(entry: LiveSandbox, why: string): Promise<void> {
    const { provider } = entry;
    if (provider === undefined || (await this.#hasEnded(entry, provider, why))) return;
    // An extension that began meanwhile must not leave it without a connection until the next pass.
    await this.#otherWorkDone(entry);
    await this.adopt(entry, provider);
  }

  async #otherWorkDone(entry: LiveSandbox): Promise<void> {
    while (entry.work?.kind === "other") await this.#context.live.finished(entry.work);
  }

  /** A sandbox that cannot be reached is asked again; one whose runtime turns out to be dead has vanished. */
  async #reach(entry: LiveSandbox, reach: () => Promise<void>): Promise<void> {
    // Nobody is to use what is to end.
    if (entry.work !== undefined || !mayRun(entry.row)) return;
    let gone: string | undefined;
    await this.#context.live.work(entry, "other", async () => {
      try {
        await reach();
        entry.failedProbes = 0;
      } catch (error) {
        if (this.#closing.signal.aborted) return;
        entry.failedProbes++;
        if (error instanceof RuntimeGone) gone = error.message;
        const enough = entry.failedProbes >= probesBeforeUnhealthy || entry.provider === undefined;
        // What the last process found wrong is wrong no longer, or not that alone.
        if (enough || entry.row.state === "unhealthy")
          await this.#markUnhealthy(entry, `it could not be reached: ${messageOf(error)}`);
      }
    });
    const { provider } = entry;
    if (entry.failedProbes === 0 || provider === undefined || this.#closing.signal.aborted) return;
    if (gone !== undefined && (await this.#hasEnded(entry, provider, gone))) return;
    this.#onProbeFailed(entry);
  }

  /** Asks the inventory, and records the end when it is one. @returns whether there is nothing more to ask. */
  async #hasEnded(entry: LiveSandbox, provider: RuntimeProvider, why: string): Promise<boolean> {
    if (entry.elsewhere !== undefined) return false;
    try {
      const state = await this.#inventories.stateOf(provider, entry.runtimeId);
      if (state === "running" || state === "unreadable" || state === "elsewhere") return false;
    } catch (error) {
      if (this.#closing.signal.aborted) return true;
      const { logger } = this.#context;
      logger.warn({ sandbox_id: entry.row.id, err: error }, "it cannot be told whether a sandbox has ended");
      return false;
    }
    await this.#otherWorkDone(entry);
    return (await this.vanished(entry, why)) !== "answers";
  }

  /**
   * The inventory says that its runtime ended without having been asked to: the sandbox is kept in state error until it
   * expires. One that still answers has not ended, whatever became of the records that the inventory goes by.
   * @param options.leftBehind its runtime may go on, with the installation that this one was copied from.
   */
  async vanished(
    entry: LiveSandbox,
    why: string,
    { leftBehind = false }: { leftBehind?: boolean } = {},
  ): Promise<"answers" | "settled"> {
    const { live, store, clock, events, queue, logger } = this.#context;
    // One that is to end has ended as it was asked to, which the destroy says that is repeated.
    if (entry.work !== undefined || !mayRun(entry.row)) return "settled";
    let answers = false;
    let ended = false;
    await live.work(entry, "other", async () => {
      answers = await this.#answers(entry);
      if (answers) {
        logger.warn(
          { sandbox_id: entry.row.id, runtime_id: entry.runtimeId, provider: entry.row.provider },
          `a sandbox answers, though by its provider's records its runtime ended (${why}); it is left running`,
        );
        return;
      }
      const error = `its runtime ended: ${why}`;
      // What a client handed in as environment may be secret, and nothing will need it again.
      const now = clock.now();
      const change = { state: "error", error, env: {}, updatedAt: now } as const;
      const { id: sandboxId, ownerId, provider: name } = entry.row;
      const data = { provider: name, error, ...ownerData(ownerId) };
      const event = { type: "sandbox.error", sandboxId, ownerId, data } as const;
      const row = await store.sandboxes.update(
        entry.row.id,
        ["running", "unhealthy"],
        change,
        this.#context.fence,
        [{ ...event, timestamp: now }],
      );
      if (row === undefined) return;
      entry.row = row;
      entry.outdated = false;
      live.stop(entry);
      queue.capacityFreed(row.ownerId);
      ended = true;
      events.emit(event);
      if (!leftBehind) this.#context.operations.incidents.sandboxEnded(why);
      const happening = { event: "sandbox.error", outcome: "failed", error: row.error ?? why } as const;
      logSandbox(
        logger,
        row,
        happening,
        leftBehind
          ? "a sandbox stays with the installation that this one was restored from"
          : "a sandbox ended by itself",
      );
    });
    if (ended) this.#onRemains(entry);
    return answers ? "answers" : "settled";
  }

  /** Takes over what the store has: a write that failed may have been made all the same. */
  async resync(entry: LiveSandbox): Promise<void> {
    const { live, store, expiry, queue } = this.#context;
    if (entry.work !== undefined) return;
    await live.work(entry, "other", async () => {
      const row = await store.sandboxes.get(entry.row.id);
      if (row === undefined || row.state === "destroyed") {
        this.#destroys.forget(entry);
        return;
      }
      entry.row = row;
      const alive = row.state === "running" || row.state === "unhealthy";
      if (!mayRun(row)) live.stop(entry);
      // It may have been ended by a write that was told to have failed.
      if (!alive) queue.capacityFreed(row.ownerId);
      if (row.state !== "creating" && !entry.outdated) expiry.set(row.id, row.expiresAt);
    });
  }

  /** Asked over the connection that is there: no record has a say in that. */
  async #answers(entry: LiveSandbox): Promise<boolean> {
    const { operations } = entry;
    if (operations === undefined) return false;
    try {
      await this.#tellExpiry(entry, operations);
      return true;
    } catch (error) {
      // A service that is stopping learnt nothing by that.
      if (this.#closing.signal.aborted) throw error;
      return false;
    }
  }

  async #connect(entry: LiveSandbox, provider: RuntimeProvider): Promise<void> {
    const { live, store, clock, events, logger } = this.#context;
    const startedMs = clock.monotonicMs();
    using deadline = deadlineAfter(probeDeadlineMs, this.#closing.signal);
    const { runtimeId } = entry;
    if (entry.elsewhere !== undefined) throw new RuntimeElsewhere(entry.elsewhere);
    await abortable(provider.adopt(runtimeId, deadline), deadline.signal);
    await this.#tellExpiry(entry, provider.sandbox(runtimeId));
    if (entry.row.state === "unhealthy") {
      const change = { state: "running", error: null, updatedAt: clock.now() } as const;
      entry.row =
        (await store.sandboxes.update(entry.row.id, ["unhealthy"], change, this.#context.fence)) ?? entry.row;
      logSandbox(
        logger,
        entry.row,
        { event: "sandbox.recover", outcome: "ok" },
        "a sandbox is healthy again",
      );
    }
    if (entry.operations !== undefined || entry.row.state !== "running") return;
    const data = { action: "adopted_runtime", provider: provider.name, image: entry.row.image };
    const { id: sandboxId, ownerId } = entry.row;
    events.emit({ type: "reconcile.action", sandboxId, ownerId, data });
    live.start(entry, "adopted");
    const durationMs = clock.monotonicMs() - startedMs;
    const controlGroup = provider.controlGroup?.(entry.runtimeId);
    const happened = { event: "sandbox.adopt", outcome: "ok", durationMs, controlGroup } as const;
    logSandbox(logger, entry.row, happened, "sandbox adopted");
  }

  async #tellExpiry(entry: LiveSandbox, operations: SandboxOperations): Promise<void> {
    const leftMs = expiresInMs(entry.row, this.#context);
    const { defaults, deadmanGraceMs } = this.#context;
    // `prolong` gives it as much, once its provider says that it runs.
    const lifeMs = entry.outdated ? Math.max(leftMs, defaults.ttlMs + deadmanGraceMs) : leftMs;
    const { signal } = this.#closing;
    await tellSwitch(entry, { operations, lifeMs, withinMs: probeDeadlineMs, signal }, this.#context);
  }

  /**
   * What is left of the runtime of a sandbox in state error goes when its turn comes, and with it the sandbox from memory.
   * Until then nothing works on it: a destroy that somebody asks for does not wait in line.
   * @throws ShuttingDown when its turn has not come before the service stops.
   */
  async removeRemains(entry: LiveSandbox): Promise<void> {
    const { live } = this.#context;
    const lane = await this.#destroys.turn(entry.row);
    try {
      const left = live.get(entry.row.id) === entry && entry.row.state === "error";
      if (!left || entry.work !== undefined) return;
      await live.work(entry, "other", async () => {
        if (await this.#removeRemains(entry)) this.#destroys.leaveToRow(entry);
      });
    } finally {
      lane.leave();
    }
  }

  async #markUnhealthy(entry: LiveSandbox, why: string): Promise<void> {
    const { store, clock, logger } = this.#context;
    if (entry.row.state !== "running" && entry.row.state !== "unhealthy") return;
    if (entry.row.state === "unhealthy" && entry.row.error === why) return;
    const change = { state: "unhealthy", error: why, updatedAt: clock.now() } as const;
    const row = await store.sandboxes.update(
      entry.row.id,
      ["running", "unhealthy"],
      change,
      this.#context.fence,
    );
    if (row === undefined) return;
    if (entry.row.state === "running") {
      const happening = { event: "sandbox.unhealthy", outcome: "failed", error: why } as const;
      logSandbox(logger, row, happening, "a sandbox is unhealthy");
    }
    entry.row = row;
  }

  /** What a dead runtime left behind goes; the next reconciliation finds what could not be removed now. */
  async #removeRemains(entry: LiveSandbox): Promise<boolean> {
    if (entry.provider === undefined) return false;
    try {
      await this.#destroys.removeRuntime(entry.provider, entry.runtimeId);
      return true;
    } catch (error) {
      this.#context.logger.warn(
        { sandbox_id: entry.row.id, err: error },
        "the remains of a runtime could not be removed; the reconciler repeats it",
      );
      return false;
    }
  }
}

/** It lives at least as long as a new sandbox would: how often it was extended nobody knows. */
function recoveredRow(found: {
  sandboxId: SandboxRow["id"];
  runtimeId: SandboxRow["runtimeId"];
  provider: string;
  workerId: string;
  note: SandboxNote | undefined;
  now: Date;
  defaults: SandboxDefaults;
  deadmanGraceMs: number;
}): SandboxRow {
  const { note, now, defaults, deadmanGraceMs } = found;
  const expiresMs = Math.max(note?.expiresAt?.getTime() ?? 0, now.getTime() + defaults.ttlMs);
  return {
    id: found.sandboxId,
    runtimeId: found.runtimeId,
    state: "running",
    provider: found.provider,
    workerId: found.workerId,
    image: note?.image ?? "unknown",
    imageResolved: note?.imageResolved ?? null,
    memoryMb: note?.memoryMb ?? defaults.memoryMb,
    vcpus: note?.vcpus ?? defaults.vcpus,
    ownerId: note?.ownerId ?? "",
    name: note?.name ?? null,
    metadata: note?.metadata ?? {},
    env: note?.env ?? {},
    user: note?.user ?? null,
    workdir: note?.workdir ?? null,
    network: note?.network ?? null,
    createdAt: note?.createdAt ?? now,
    expiresAt: new Date(expiresMs),
    // Until it is told anew it goes by what it was told last, which may be the longest life there is.
    endsItselfAt: new Date(
      Math.max(expiresMs, now.getTime() + (defaults.maxTtlMs || longestTtlMs)) + deadmanGraceMs,
    ),
    updatedAt: now,
    destroyedAt: null,
    destroyRequested: false,
    error: null,
    ...(note?.slot && { slot: note.slot }),
  };
}
