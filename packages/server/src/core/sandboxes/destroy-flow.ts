import type { SandboxState } from "@alcove/wire";
import { abortable, ignoreOutcome } from "../../platform/abortable.ts";
import { DeadlineExceeded, deadlineAfter } from "../../platform/deadline.ts";
import type { Lane } from "../../platform/fair-lanes.ts";
import { messageOf } from "../../platform/message-of.ts";
import {
  type CallOptions,
  Conflict,
  DomainError,
  type InventoryEntry,
  ProviderError,
  RuntimeElsewhere,
  type RuntimeId,
  type RuntimeProvider,
  type SandboxOperations,
  type SandboxRow,
  Unavailable,
} from "../../ports/index.ts";
import { ownerData } from "../events/owner-data.ts";
import { callDeadlineMs, destroyDeadlineMs, type SandboxContext } from "./context.ts";
import { type EndAddress, EndLanes } from "./end-lanes.ts";
import { type LiveSandbox, sandboxNotFound, workerUnavailable } from "./live-sandboxes.ts";
import { endsItselfAt } from "./own-switch.ts";
import { logSandbox } from "./sandbox-log.ts";
import { liveStates, statesBefore } from "./states.ts";

/** A caller who took a spawn back has waited for one attempt to undo it; that is enough. */
function notUndone({ row }: LiveSandbox): Unavailable {
  return new Unavailable(`sandbox "${row.id}" is not gone yet: ${row.error ?? "its spawn is being undone"}`, {
    retryAfterS: 5,
  });
}

/** Who repeats a destroy does so soon. */
const keptWithdrawn = 1_000;
/** Bytes of labels, as JSON, that a destroyed sandbox keeps: a hundred thousand of them are kept, whoever made them. */
const keptLabelBytes = 4_096;

export type DestroyReason = "requested" | "expired" | "reconciled" | "shutdown";

/** A client destroyed the sandbox before it was finished. */
export class DestroyedMeanwhile extends Conflict {
  constructor(id: string) {
    super(`sandbox "${id}" was destroyed while it was being created`);
  }
}

/**
 * Ends sandboxes. The intent is durable before the provider is called; a provider that fails leaves it standing, and
 * `onUnfinished` hears of it so that it is repeated until confirmed. Concurrent destroys of one sandbox share one. Until
 * its end is confirmed a sandbox takes up its place at the limits, whatever its state says; `forget` gives it back.
 */
export class DestroyFlow {
  readonly #context: SandboxContext;
  readonly #onUnfinished: (entry: LiveSandbox) => void;
  readonly #lanes = new EndLanes();
  /** Spawns that were taken back before they had a place, of which the store knows nothing, and whose they were: the newest. */
  readonly #withdrawn = new Map<string, string>();
  /** Failures that have their line in the log. */
  readonly #told = new WeakSet<Error>();

  constructor(context: SandboxContext, onUnfinished: (entry: LiveSandbox) => void) {
    this.#context = context;
    this.#onUnfinished = onUnfinished;
  }

  /**
   * Destroys a sandbox whatever its state, a spawn that still waits for its place included; the caller may stop
   * waiting, the work goes on.
   * @param options.inLine as of `begin`.
   * @param options.unless asked once nothing else works on it: true leaves it alone.
   * @returns whether it is gone.
   * @throws NotFound for an id never seen; ProviderError or Unavailable while the provider does not confirm.
   */
  async destroy(
    id: string,
    options: CallOptions & {
      reason: DestroyReason;
      inLine?: boolean;
      unless?: (entry: LiveSandbox) => boolean;
    },
  ): Promise<boolean> {
    const { live, store, registry } = this.#context;
    let cancelled = false;
    for (;;) {
      options.signal.throwIfAborted();
      const work = live.workOn(id);
      const entry = live.get(id);
      if (work?.kind === "destroy") {
        await abortable(work.done, options.signal).finally(() => live.turn());
        return true;
      }
      if (work !== undefined) {
        if (work.kind !== "other") {
          // Before it leaves: who repeats this meanwhile, or had no answer, finds neither it nor a row.
          if (work.kind === "reserving") this.#keepWithdrawn(id, live.ownerOf(id) ?? "");
          work.cancel(new DestroyedMeanwhile(id));
          cancelled = true;
        }
        await live.finished(work, options.signal);
        continue;
      }
      if (entry !== undefined) {
        if (cancelled && entry.row.destroyRequested) throw notUndone(entry);
        if (options.unless?.(entry) === true) return false;
        await abortable(this.begin(entry, options.reason, options), options.signal);
        return true;
      }
      const row = await store.sandboxes.get(id as LiveSandbox["row"]["id"]);
      if (row?.state === "destroyed") return true;
      if (row === undefined && (cancelled || this.#withdrawn.has(id))) return true;
      if (row === undefined) throw sandboxNotFound(id);
      if (!registry.reaches(row)) throw workerUnavailable(row);
      if (live.workOn(id) !== undefined || live.get(id) !== undefined) continue;
      if (row.state === "error") {
        live.add(row, registry.find(row));
        continue;
      }
      throw new Unavailable(`sandbox "${id}" is not known to this process yet; try again in a moment`);
    }
  }

  /** Whose a spawn was that was taken back while it waited; empty: nobody's. */
  ownerOfWithdrawn(id: string): string | undefined {
    return this.#withdrawn.get(id);
  }

  #keepWithdrawn(id: string, ownerId: string): void {
    this.#withdrawn.set(id, ownerId);
    const [oldest] = this.#withdrawn.keys();
    if (this.#withdrawn.size > keptWithdrawn && oldest !== undefined) this.#withdrawn.delete(oldest);
  }

  /**
   * Destroys a sandbox that nothing else works on.
   * @param options.inLine its runtime waits for its turn to be ended: nobody asked for it just now.
   */
  begin(entry: LiveSandbox, reason: DestroyReason, options: { inLine?: boolean } = {}): Promise<void> {
    const { inLine = false } = options;
    return this.#context.live
      .work(entry, "destroy", (nameFree) => this.#destroy(entry, { reason, inLine, nameFree }))
      .catch((error: unknown) => {
        this.#onUnfinished(entry);
        throw error;
      });
  }

  /**
   * Takes a spawn back; nothing else works on it. One that a client destroyed is remembered as such, now or when it is
   * repeated. Never throws: what could not be done stays for the reconciler.
   */
  async undo(entry: LiveSandbox, options: { destroyed: boolean; inLine?: boolean }): Promise<void> {
    const { store, clock } = this.#context;
    const startedMs = clock.monotonicMs();
    try {
      await this.#context.live.work(entry, "destroy", async () => {
        if (options.destroyed && !entry.row.destroyRequested) {
          const change = { destroyRequested: true, updatedAt: clock.now() };
          entry.row =
            (await store.sandboxes.update(entry.row.id, ["creating"], change, this.#context.fence)) ??
            entry.row;
        }
        await this.#endRuntimeInTurn(entry, ["creating"], options.inLine === true);
        if (entry.row.destroyRequested) await this.#markDestroyed(entry, "requested", startedMs);
        else await this.#removeRow(entry);
      });
    } catch (error) {
      if (!this.hasTold(error))
        this.#context.logger.warn(
          { sandbox_id: entry.row.id, err: error },
          "a spawn could not be undone; the reconciler repeats it",
        );
      this.#onUnfinished(entry);
    }
  }

  /** Whether a failure of a destroy has been logged here. */
  hasTold(error: unknown): boolean {
    return error instanceof Error && this.#told.has(error);
  }

  /** Runtimes whose turn has not come are left to the next start. */
  close(): void {
    this.#lanes.close();
  }

  /**
   * Ends a runtime of ours that belongs to no sandbox, when its turn comes.
   * @returns false when a sandbox has it by then.
   * @throws ShuttingDown when its turn has not come before the service stops.
   */
  async removeOrphan(provider: RuntimeProvider, runtime: InventoryEntry): Promise<boolean> {
    const { live, workerId } = this.#context;
    const ownerId = runtime.note?.ownerId ?? "";
    const lane = await this.turn({ workerId, provider: provider.name, ownerId });
    try {
      if (live.knows(runtime)) return false;
      await this.removeRuntime(provider, runtime.runtimeId);
      return true;
    } finally {
      lane.leave();
    }
  }

  /** Waits until one more runtime of this owner may be ended; whoever has the lane leaves it. @throws ShuttingDown */
  turn(of: EndAddress): Promise<Lane> {
    return this.#lanes.enter(of);
  }

  /** Ends a runtime of ours that belongs to no sandbox, or whose sandbox is in state error. */
  async removeRuntime(provider: RuntimeProvider, runtimeId: RuntimeId): Promise<void> {
    using deadline = deadlineAfter(destroyDeadlineMs);
    await this.#context.operations.measure("destroy", provider.name, () =>
      abortable(provider.destroy(runtimeId, deadline), deadline.signal),
    );
  }

  /** In state error, and nothing of its runtime is left: the row is enough. */
  leaveToRow(entry: LiveSandbox): void {
    const { live, expiry } = this.#context;
    expiry.delete(entry.row.id);
    live.leaveToRow(entry);
  }

  /** Its row is destroyed or gone. */
  forget(entry: LiveSandbox): void {
    const { live, expiry, queue } = this.#context;
    expiry.delete(entry.row.id);
    live.remove(entry);
    queue.capacityFreed(entry.row.ownerId);
  }

  async #destroy(
    entry: LiveSandbox,
    options: { reason: DestroyReason; inLine: boolean; nameFree: () => void },
  ): Promise<void> {
    const { reason, inLine, nameFree } = options;
    const { store, clock, live } = this.#context;
    const state = reason === "expired" ? { state: "expired" as const } : {};
    const from = reason === "expired" ? [...statesBefore("expired"), "expired" as const] : liveStates;
    const change = { ...state, destroyRequested: true, updatedAt: clock.now() };
    const row = await store.sandboxes.update(entry.row.id, from, change, this.#context.fence);
    if (row === undefined) {
      // Only another control plane ends a sandbox of ours.
      this.forget(entry);
      return;
    }
    entry.row = row;
    if (row.state === "expired") nameFree();
    await live.lastLooks(entry);
    const { operations } = entry;
    live.stop(entry);
    if (operations !== undefined && inLine && this.#lanes.full(row)) this.#endItself(operations);
    const startedMs = await this.#endRuntimeInTurn(entry, liveStates, inLine);
    await this.#markDestroyed(entry, reason, startedMs);
  }

  /** What waits for its turn must not use the machine meanwhile: its own switch is set to now. Nobody waits for that. */
  #endItself(operations: SandboxOperations): void {
    const deadline = deadlineAfter(callDeadlineMs);
    void abortable(operations.setExpiry(0, deadline), deadline.signal)
      .catch(ignoreOutcome)
      .finally(() => deadline[Symbol.dispose]());
  }

  /** @returns when its turn came, milliseconds. */
  async #endRuntimeInTurn(
    entry: LiveSandbox,
    from: readonly SandboxState[],
    inLine: boolean,
  ): Promise<number> {
    const lane: Lane | undefined = inLine ? await this.#lanes.enter(entry.row) : undefined;
    const startedMs = this.#context.clock.monotonicMs();
    try {
      await this.#endRuntimeOrKeepIntent(entry, from);
    } finally {
      lane?.leave();
    }
    return startedMs;
  }

  async #endRuntimeOrKeepIntent(entry: LiveSandbox, from: readonly SandboxState[]): Promise<void> {
    try {
      await this.#endRuntime(entry);
    } catch (error) {
      await this.#keepIntent(entry, from, error);
      throw error;
    }
  }

  async #endRuntime(entry: LiveSandbox): Promise<void> {
    const { provider, row } = entry;
    if (provider === undefined) {
      const { registry } = this.#context;
      if (this.#hasEndedItself(row)) return;
      const at = endsItselfAt(row, this.#context).toISOString();
      throw new Unavailable(
        `sandbox "${row.id}" cannot be ended now: ${registry.absence(row.provider)}; enable it again, or wait until the sandbox has ended itself, at ${at}`,
      );
    }
    try {
      if (entry.elsewhere !== undefined) throw new RuntimeElsewhere(entry.elsewhere);
      await this.removeRuntime(provider, entry.runtimeId);
    } catch (error) {
      if (error instanceof RuntimeElsewhere && this.#hasEndedItself(row)) return;
      if (error instanceof DomainError) throw error;
      if (error instanceof DeadlineExceeded) {
        const message = `provider "${row.provider}" has not destroyed sandbox "${row.id}" after ${destroyDeadlineMs / 1000} s; it is tried again until it is done`;
        throw new Unavailable(message, { cause: error, retryAfterS: 5 });
      }
      throw new ProviderError(`provider "${row.provider}" could not destroy sandbox "${row.id}"`, {
        cause: error,
      });
    }
  }

  /**
   * Whether its own switch has ended it, which needs neither the service nor the provider. What that leaves behind belongs to no
   * sandbox, and is removed as such when the provider is enabled again.
   */
  #hasEndedItself(row: SandboxRow): boolean {
    return endsItselfAt(row, this.#context) <= this.#context.clock.now();
  }

  async #markDestroyed(entry: LiveSandbox, reason: DestroyReason, startedMs: number): Promise<void> {
    const { store, clock, events, logger } = this.#context;
    const now = clock.now();
    // What a client handed in as environment may be secret: it goes with the sandbox.
    const change = { state: "destroyed", env: {}, destroyedAt: now, updatedAt: now } as const;
    const { id: sandboxId, ownerId, provider, metadata } = entry.row;
    const kept = Buffer.byteLength(JSON.stringify(metadata)) <= keptLabelBytes ? {} : { metadata: {} };
    const data = { provider, reason, ...ownerData(ownerId) };
    const event = { type: "sandbox.destroyed", sandboxId, ownerId, data } as const;
    const told = [{ ...event, timestamp: now }];
    const last = { ...change, ...kept };
    await store.sandboxes.update(sandboxId, statesBefore("destroyed"), last, this.#context.fence, told);
    this.forget(entry);
    events.emit(event);
    const durationMs = clock.monotonicMs() - startedMs;
    const happening = { event: "sandbox.destroy", outcome: "ok", reason, durationMs } as const;
    logSandbox(logger, entry.row, happening, reason === "expired" ? "sandbox expired" : "sandbox destroyed");
  }

  async #removeRow(entry: LiveSandbox): Promise<void> {
    await this.#context.store.sandboxes.remove(entry.row.id, this.#context.fence);
    this.forget(entry);
  }

  /** The provider did not confirm: the sandbox can no longer be used, and its end is repeated. */
  async #keepIntent(entry: LiveSandbox, from: readonly SandboxState[], error: unknown): Promise<void> {
    const { store, clock, events, logger } = this.#context;
    const { id: sandboxId, ownerId, provider } = entry.row;
    const data = { operation: "destroy", provider, error: messageOf(error) };
    if (error instanceof Error) this.#told.add(error);
    logSandbox(
      logger,
      entry.row,
      { event: "sandbox.destroy", outcome: "failed", error: messageOf(error), err: error },
      "destroy failed; it is repeated",
    );
    events.emit({ type: "provider.failed", sandboxId, ownerId, data });
    events.emit({ type: "operation.failed", sandboxId, ownerId, data });
    const text = `it is being destroyed, and the last attempt failed: ${messageOf(error)}`;
    const state = entry.row.state === "running" ? { state: "unhealthy" as const } : {};
    const change = { ...state, error: text, updatedAt: clock.now() };
    entry.row = (await store.sandboxes.update(entry.row.id, from, change, this.#context.fence)) ?? entry.row;
  }
}
