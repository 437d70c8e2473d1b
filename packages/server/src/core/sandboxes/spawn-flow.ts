import { formatDuration } from "@alcove/wire";
import { abortable, forwardAbort } from "../../platform/abortable.ts";
import {
  CallerGone,
  type Deadline,
  DeadlineExceeded,
  deadlineAfter,
  ShuttingDown,
} from "../../platform/deadline.ts";
import { messageOf } from "../../platform/message-of.ts";
import { currentSpan, traced } from "../../platform/request-scope.ts";
import {
  type Birth,
  type Clock,
  Conflict,
  DomainError,
  type EmittedEvent,
  type OnStage,
  ProviderError,
  type RuntimeSpec,
  type SandboxId,
  type SandboxRow,
  type SpawnedRuntime,
  StorageFull,
} from "../../ports/index.ts";
import { ownerData } from "../events/owner-data.ts";
import { makeWorkspace } from "../pool/workspace.ts";
import { foreseenDenial } from "../scheduling/admission.ts";
import { expiresInMs, type SandboxContext, spawnDeadlineMs } from "./context.ts";
import { DestroyedMeanwhile, type DestroyFlow } from "./destroy-flow.ts";
import { refuseSecondOwner } from "./exclusive-owners.ts";
import { KeyClaimed, keyRememberedMs, type SpawnClaim } from "./idempotency.ts";
import type { LiveSandbox, Work } from "./live-sandboxes.ts";
import { logSandbox } from "./sandbox-log.ts";
import { type SpawnPlan, spawnTtl } from "./spawn-plan.ts";

export interface SpawnOptions {
  id: SandboxId;
  signal: AbortSignal;
  /** Of the time that it may wait for a place, milliseconds. */
  waitedMs: number;
  onStage?: OnStage;
  claim?: SpawnClaim;
}

/** How long an aborted spawn may take to notice before its runtime is destroyed under it, milliseconds. */
const settleDeadlineMs = 5_000;

/**
 * Makes one sandbox. The row, a proposed runtime id included, is durable in state `creating` before the provider is
 * called; a provider that gives an id of its own has it written down with the state `running`.
 * A spawn that fails, or whose caller goes away before the provider is done, is undone: the runtime is destroyed,
 * then the row removed; what cannot be undone now stays `creating` with `destroyRequested` for the reconciler. Once
 * the provider is done the sandbox is kept, whoever still listens.
 */
export class SpawnFlow {
  readonly #context: SandboxContext;
  readonly #destroys: DestroyFlow;
  /** Every spawn from its first step to its last, and how it is cancelled. */
  readonly #underWay = new Map<Promise<void>, (reason: Error) => void>();
  #closed: Error | undefined;

  constructor(context: SandboxContext, destroys: DestroyFlow) {
    this.#context = context;
    this.#destroys = destroys;
  }

  async spawn(plan: SpawnPlan, options: SpawnOptions): Promise<SandboxRow> {
    const cancelled = new AbortController();
    const cancel = (reason: Error) => cancelled.abort(reason);
    using _caller = forwardAbort(options.signal, cancelled);
    const { promise: done, resolve: settled } = Promise.withResolvers<void>();
    this.#underWay.set(done, cancel);
    try {
      if (this.#closed !== undefined) throw this.#closed;
      const own = { ...options, signal: cancelled.signal };
      const told = { "alcove.sandbox.id": options.id, "alcove.provider": plan.provider.name };
      const { entry, birth } = await traced("spawn admission", told, () =>
        this.#reserve(plan, own, { kind: "reserving", done, cancel }),
      );
      using deadline = deadlineAfter(spawnDeadlineMs);
      using _deadline = forwardAbort(deadline.signal, cancelled);
      entry.work = { kind: "spawn", done, cancel };
      return await this.#make(entry, plan, { ...own, birth });
    } finally {
      this.#underWay.delete(done);
      settled();
    }
  }

  /** Ends every spawn under way, those that wait for a place included, and waits until they are undone. */
  async close(reason: Error): Promise<void> {
    this.#closed = reason;
    for (const cancel of this.#underWay.values()) cancel(reason);
    await Promise.all(this.#underWay.keys());
  }

  /** Waits for capacity and writes the intent. */
  async #reserve(
    plan: SpawnPlan,
    options: SpawnOptions,
    reserving: Work & { kind: "reserving" },
  ): Promise<{ entry: LiveSandbox; birth: Birth | undefined }> {
    const { live, queue, store, clock, ids, limits, pool, fence, run } = this.#context;
    const startedMs = clock.monotonicMs();
    let entry: LiveSandbox | undefined;
    let birth: Birth | undefined;
    using _waiting = live.waiting(options.id, plan.ownerId, reserving);
    await queue.admit({
      ownerId: plan.ownerId,
      sandboxId: options.id,
      signal: options.signal,
      waitedMs: options.waitedMs,
      look: async () => {
        this.#admit(plan);
        refuseSecondOwner(plan.provider, plan, live);
        const wanted = { ownerId: plan.ownerId, provider: plan.provider.name, rules: pool.rules };
        const slot = () => store.sandboxes.poolDenial(wanted);
        const applied = limits.current(plan.ownerId);
        return foreseenDenial({ store, limits: applied, ...(pool.enabled && { slot }) }, plan);
      },
      attempt: async () => {
        this.#admit(plan);
        const row = newRow(plan, {
          id: options.id,
          runtimeId: ids.runtimeId(),
          now: clock.now(),
          // Limits may have changed while it waited.
          ttlMs: spawnTtl(plan, this.#context),
          workerId: this.#context.workerId,
          deadmanGraceMs: this.#context.deadmanGraceMs,
        });
        refuseSecondOwner(plan.provider, row, live);
        const attempted = live.add(row, plan.provider);
        // Nobody else may think that this row was left behind.
        attempted.work = reserving;
        try {
          const claim = options.claim && {
            ...options.claim,
            expiresAt: new Date(row.createdAt.getTime() + keyRememberedMs),
          };
          const result = await store.sandboxes.reserve({
            row,
            limits,
            fence,
            birth: { run },
            ...(pool.enabled && { pool: { ...pool.rules, newVmId: `vm-${row.runtimeId}` } }),
            ...(claim && { claim }),
          });
          if (result.admitted) {
            entry = attempted;
            birth = result.birth;
            if (result.slot !== undefined) entry.row = { ...row, slot: result.slot };
          } else if (result.reason === "claimed") throw new KeyClaimed(result);
          else live.remove(attempted);
          return result;
        } catch (error) {
          live.remove(attempted);
          throw error;
        }
      },
    });
    if (entry === undefined) throw new Error("an admitted spawn has no reservation");
    options.onStage?.("admission", since(clock, startedMs));
    return { entry, birth };
  }

  /** @throws Unavailable when nothing new is taken, or not by this provider, which then counts as its failure. */
  #admit(plan: SpawnPlan): void {
    this.#context.drain.admit();
    try {
      this.#context.registry.admit(plan.provider.name);
    } catch (error) {
      this.#context.operations.failed("spawn", plan.provider.name, 0, error);
      throw error;
    }
  }

  async #make(
    entry: LiveSandbox,
    plan: SpawnPlan,
    options: { signal: AbortSignal; onStage?: OnStage; birth: Birth | undefined },
  ): Promise<SandboxRow> {
    const { clock, live, expiry, events, logger, pool } = this.#context;
    const startedMs = clock.monotonicMs();
    try {
      options.signal.throwIfAborted();
      const { slot } = entry.row;
      const lifeMs = expiresInMs(entry.row, this.#context);
      const spec = {
        ...runtimeSpec(entry.row, plan, lifeMs),
        ...(options.birth && { birth: options.birth }),
        ...(slot && pool.runtime(slot, plan.provider)),
      };
      const traits = { "alcove.sandbox.id": entry.row.id, "alcove.provider": plan.provider.name };
      const { image } = await traced("spawn provider", traits, async () => {
        const { runtimeId, ...made } = await this.#provide(spec, plan, {
          signal: options.signal,
          ...withSpans(options.onStage, clock),
        });
        if (runtimeId !== undefined) live.bind(entry, runtimeId);
        if (slot !== undefined) {
          const owner = spec.user === undefined ? undefined : slot;
          await makeWorkspace(plan.provider.sandbox(entry.runtimeId).files, owner, options);
        }
        return made;
      });
      options.onStage?.("provider", since(clock, startedMs));
      const committedMs = clock.monotonicMs();
      await this.#context.beforeAnswered?.();
      const told = spawnEvents(entry.row);
      entry.row = await traced("spawn commit", traits, () => this.#commit(entry, { image, lifeMs }, told));
      options.onStage?.("commit", since(clock, committedMs));
      entry.work = undefined;
      expiry.set(entry.row.id, entry.row.expiresAt);
      for (const event of told) events.emit(event);
      live.start(entry, "spawned");
      const durationMs = since(clock, startedMs);
      this.#context.operations.succeeded("spawn", entry.row.provider, durationMs);
      this.#context.registry.spawned(entry.row.provider);
      const controlGroup = plan.provider.controlGroup?.(entry.runtimeId);
      const happened = { event: "sandbox.spawn", outcome: "ok", durationMs, controlGroup } as const;
      logSandbox(logger, entry.row, happened, "sandbox spawned");
      return entry.row;
    } catch (error) {
      const cause = options.signal.aborted ? causeOf(options.signal, plan) : error;
      this.#report(entry, cause, since(clock, startedMs));
      await this.#destroys.undo(entry, { destroyed: cause instanceof DestroyedMeanwhile });
      throw cause;
    }
  }

  /** Calls the provider; one that does not notice the abort is not waited for longer than its settling time. */
  async #provide(
    spec: RuntimeSpec,
    plan: SpawnPlan,
    options: { signal: AbortSignal; onStage?: OnStage },
  ): Promise<SpawnedRuntime> {
    const spawned = plan.provider.spawn(spec, options);
    using patience = patienceAfter(options.signal);
    return await abortable(spawned, patience.signal);
  }

  /** @param made.lifeMs what its runtime was told; it counts from when it begins, which is before now. */
  async #commit(
    entry: LiveSandbox,
    made: { image: string; lifeMs: number },
    told: readonly EmittedEvent[],
  ): Promise<SandboxRow> {
    const { store, clock } = this.#context;
    const { runtimeId } = entry;
    const now = clock.now();
    const endsItselfAt = new Date(now.getTime() + made.lifeMs);
    const change = {
      state: "running",
      runtimeId,
      imageResolved: made.image,
      endsItselfAt,
      updatedAt: now,
    } as const;
    const events = told.map((event) => ({ ...event, timestamp: now }));
    const row = await store.sandboxes.update(entry.row.id, ["creating"], change, this.#context.fence, events);
    if (row === undefined)
      throw new Conflict(`sandbox "${entry.row.id}" was removed while it was being created`);
    return row;
  }

  #report(entry: LiveSandbox, error: unknown, durationMs: number): void {
    const { events, logger } = this.#context;
    const { id: sandboxId, ownerId, provider } = entry.row;
    this.#context.operations.failed("spawn", provider, durationMs, error);
    if (error instanceof DestroyedMeanwhile) return;
    if (error instanceof StorageFull) this.#context.registry.refusedForRoom(provider);
    const data = { operation: "spawn", provider, error: messageOf(error) };
    const providerFailed =
      !(error instanceof DomainError) || ["provider_error", "unavailable"].includes(error.code);
    // What the caller got wrong is told by the request's own line.
    if (providerFailed) {
      const happening = {
        event: "sandbox.spawn",
        outcome: error instanceof CallerGone ? "gone" : "failed",
        durationMs,
        error: messageOf(error),
      } as const;
      logSandbox(
        logger,
        entry.row,
        happening,
        happening.outcome === "gone" ? "spawn undone" : "spawn failed",
      );
    }
    const whose = { sandboxId, ownerId };
    if (providerFailed && !isCancellation(error)) events.emit({ type: "provider.failed", ...whose, data });
    events.emit({ type: "operation.failed", ...whose, data });
    events.emit({
      type: "sandbox.error",
      ...whose,
      data: { provider, error: messageOf(error), ...ownerData(ownerId) },
    });
  }
}

/** The stages of a provider are parts of the trace too, told when each is over. */
function withSpans(onStage: OnStage | undefined, clock: Clock): { onStage?: OnStage } {
  const span = currentSpan();
  if (span === undefined) return onStage === undefined ? {} : { onStage };
  return {
    onStage: (stage, durationMs, endedAgoMs = 0) => {
      onStage?.(stage, durationMs, endedAgoMs);
      const endedMs = clock.monotonicMs() - endedAgoMs;
      span.child(`spawn ${stage}`, { startedMs: endedMs - durationMs }).end({ endedMs });
    },
  };
}

function causeOf(signal: AbortSignal, plan: SpawnPlan): unknown {
  if (!(signal.reason instanceof DeadlineExceeded)) return signal.reason;
  const message = `provider "${plan.provider.name}" did not finish the spawn in ${formatDuration(spawnDeadlineMs)}`;
  return new ProviderError(message, { cause: signal.reason });
}

function isCancellation(error: unknown): boolean {
  return error instanceof CallerGone || error instanceof ShuttingDown;
}

/** Aborts some time after `signal` has. */
function patienceAfter(signal: AbortSignal): Deadline {
  const controller = new AbortController();
  let timer: NodeJS.Timeout | undefined;
  const onAbort = () => {
    timer = setTimeout(() => controller.abort(signal.reason), settleDeadlineMs);
    timer.unref();
  };
  if (signal.aborted) onAbort();
  else signal.addEventListener("abort", onAbort, { once: true });
  return {
    signal: controller.signal,
    [Symbol.dispose]() {
      clearTimeout(timer);
      signal.removeEventListener("abort", onAbort);
    },
  };
}

function newRow(
  plan: SpawnPlan,
  made: {
    id: SandboxId;
    runtimeId: SandboxRow["runtimeId"];
    now: Date;
    ttlMs: number;
    workerId: string;
    deadmanGraceMs: number;
  },
): SandboxRow {
  const expiresMs = made.now.getTime() + made.ttlMs;
  return {
    id: made.id,
    runtimeId: made.runtimeId,
    state: "creating",
    provider: plan.provider.name,
    workerId: made.workerId,
    image: plan.image,
    imageResolved: null,
    memoryMb: plan.memoryMb,
    vcpus: plan.vcpus,
    ownerId: plan.ownerId,
    name: plan.name,
    metadata: plan.metadata,
    env: plan.env,
    user: plan.user,
    workdir: plan.workdir,
    network: plan.network,
    createdAt: made.now,
    expiresAt: new Date(expiresMs),
    endsItselfAt: new Date(expiresMs + made.deadmanGraceMs + spawnDeadlineMs),
    updatedAt: made.now,
    destroyedAt: null,
    destroyRequested: false,
    error: null,
  };
}

function runtimeSpec(row: SandboxRow, plan: SpawnPlan, lifeMs: number): RuntimeSpec {
  return {
    runtimeId: row.runtimeId,
    sandboxId: row.id,
    image: plan.image,
    memoryMb: plan.memoryMb,
    vcpus: plan.vcpus,
    env: plan.env,
    ...(plan.user === null ? {} : { user: plan.user }),
    ...(plan.workdir === null ? {} : { workdir: plan.workdir }),
    ...(plan.network === null ? {} : { network: plan.network }),
    expiresInMs: lifeMs,
    metadata: plan.metadata,
    ownerId: plan.ownerId,
    ...(plan.name === null ? {} : { name: plan.name }),
  };
}

function spawnEvents({ id: sandboxId, ownerId, provider, image }: SandboxRow): EmittedEvent[] {
  const data = { provider, image, ...ownerData(ownerId) };
  return [
    { type: "sandbox.created", sandboxId, ownerId, data },
    { type: "sandbox.running", sandboxId, ownerId, data },
  ];
}

function since(clock: Clock, startedMs: number): number {
  return clock.monotonicMs() - startedMs;
}
