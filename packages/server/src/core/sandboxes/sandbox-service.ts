import { abortable } from "../../platform/abortable.ts";
import { boundedParallel } from "../../platform/bounded-parallel.ts";
import { deadlineAfter, ShuttingDown } from "../../platform/deadline.ts";
import {
  BadRequest,
  type CallOptions,
  type OnStage,
  type PoolInUse,
  type PoolRules,
  ResourceLimit,
  type RuntimeProvider,
  type RuntimeStats,
  type SandboxId,
  type SandboxRow,
  Unavailable,
} from "../../ports/index.ts";
import { ownerData } from "../events/owner-data.ts";
import { parseOwnerId } from "../owners.ts";
import type { ProviderAddress } from "../providers/provider-address.ts";
import type { ProviderRegistry } from "../providers/provider-registry.ts";
import { type AdmissionDecision, decideAdmission } from "../scheduling/admission.ts";
import type { StartGates } from "../scheduling/gate.ts";
import type { SpawnQueue } from "../scheduling/spawn-queue.ts";
import { acquireNamed } from "./acquire.ts";
import { probeDeadlineMs, type SandboxContext } from "./context.ts";
import type { DestroyFlow } from "./destroy-flow.ts";
import type { ExpireFlow } from "./expire-flow.ts";
import type { ExtendFlow } from "./extend-flow.ts";
import type { FailedSandboxes } from "./failed-sandboxes.ts";
import { hashInput, type IdempotentSpawns, type SpawnClaim } from "./idempotency.ts";
import { inSandbox, withItsEnd } from "./in-sandbox.ts";
import { type ListOptions, type ListPage, type ListRequest, listSandboxes } from "./listing.ts";
import {
  hasTimeLeft,
  type LiveSandbox,
  notRunning,
  type RunningSandbox,
  type SandboxListener,
  sandboxGone,
  sandboxNotFound,
} from "./live-sandboxes.ts";
import type { NamedSpawns } from "./named-spawns.ts";
import type { SandboxDirectory } from "./sandbox-directory.ts";
import type { SandboxCounts } from "./sandbox-tally.ts";
import { SharedFigures } from "./shared-figures.ts";
import type { SpawnFlow } from "./spawn-flow.ts";
import { checkSpawn, checkTtl, planSpawn, type SpawnInput, type SpawnPlan } from "./spawn-plan.ts";
import { listUsage, type UsagePage } from "./usage.ts";

export type { SpawnInput } from "./spawn-plan.ts";

/** Destroys at once when many sandboxes go together. */
const parallelDestroys = 16;
/** How long a stop waits for spawns to be undone and for destroys: intents are written down, the next start goes on. */
const closeDeadlineMs = 20_000;
/** Console lines asked for at once. */
export const longestLog = 10_000;

/**
 * Sandboxes, from spawn to destroy. Spawns wait until their provider's runtimes are known, everything else for what it
 * means to be loaded. The states of a sandbox are in `states.ts`, what this process does with one in `live-sandboxes.ts`.
 */
export class SandboxService implements AsyncDisposable {
  readonly #context: SandboxContext;
  readonly #gates: StartGates;
  readonly #directory: SandboxDirectory;
  readonly #failed: FailedSandboxes;
  readonly #spawns: SpawnFlow;
  readonly #destroys: DestroyFlow;
  readonly #expires: ExpireFlow;
  readonly #extends: ExtendFlow;
  readonly #idempotent: IdempotentSpawns;
  readonly #named: NamedSpawns;
  readonly #figures = new SharedFigures({ deadlineMs: probeDeadlineMs });
  #closed = false;

  constructor(parts: {
    context: SandboxContext;
    gates: StartGates;
    directory: SandboxDirectory;
    failed: FailedSandboxes;
    spawns: SpawnFlow;
    destroys: DestroyFlow;
    expires: ExpireFlow;
    extends: ExtendFlow;
    idempotent: IdempotentSpawns;
    named: NamedSpawns;
  }) {
    this.#context = parts.context;
    this.#gates = parts.gates;
    this.#directory = parts.directory;
    this.#failed = parts.failed;
    this.#spawns = parts.spawns;
    this.#destroys = parts.destroys;
    this.#expires = parts.expires;
    this.#extends = parts.extends;
    this.#idempotent = parts.idempotent;
    this.#named = parts.named;
  }

  /** Whether spawns without a wish for a provider are let through. */
  get ready(): boolean {
    return this.#gates.ofProvider(this.#context.registry.default()).opened;
  }

  /** Sandboxes in memory, and the spawn queue's figures. */
  get figures(): { live: number; queueDepth: number; queue: SpawnQueue["stats"] } {
    const { live, queue } = this.#context;
    return { live: live.size, queueDepth: queue.depth, queue: queue.stats };
  }

  /** How many sandboxes there are, at the same cost however many that is. */
  get counts(): SandboxCounts {
    return this.#context.live.tally.counts;
  }

  /** How many sandboxes of a provider there are, of one owner or of all, from memory. */
  countOf(address: ProviderAddress, ownerId?: string): number {
    const ofIt = (row: SandboxRow) =>
      row.workerId === address.workerId &&
      row.provider === address.provider &&
      (ownerId === undefined || row.ownerId === ownerId);
    return this.#context.live.all().filter(({ row, work }) => ofIt(row) && work?.kind !== "reserving").length;
  }

  /**
   * Makes a sandbox. @param context.waitedMs of the time that it may wait for a place. @returns it in state running, or the one this idempotency key made before.
   * @throws BadRequest, NotFound (provider, image), Conflict, ResourceLimit, ProviderError, Unavailable.
   */
  async spawn(
    input: SpawnInput,
    context: CallOptions & { idempotencyKey?: string; onStage?: OnStage; waitedMs?: number },
  ): Promise<{ sandbox: SandboxRow; replayed: boolean }> {
    if (this.#closed) throw new ShuttingDown();
    const id = this.#context.ids.sandboxId();
    const { signal, onStage, idempotencyKey, waitedMs = 0 } = context;
    const spawn = async (claim?: SpawnClaim) => {
      const plan = this.#plan(await this.#context.templates.expand(input));
      await this.#gates.ofProvider(plan.provider).wait(signal);
      if (this.#closed) throw new ShuttingDown();
      try {
        return await this.#spawns.spawn(plan, {
          id,
          signal,
          waitedMs,
          ...(onStage && { onStage }),
          ...(claim && { claim }),
        });
      } catch (error) {
        if (error instanceof ResourceLimit) this.#reportLimit(plan.ownerId, "spawn", error);
        throw error;
      }
    };
    if (idempotencyKey === undefined) return { sandbox: await spawn(), replayed: false };
    const bodyHash = hashInput(input);
    const ownerId = parseOwnerId(input.ownerId);
    const request = { key: idempotencyKey, ownerId, id, bodyHash, signal };
    return this.#idempotent.run(request, spawn);
  }

  /**
   * The owner's living sandbox of this name, one that is being made waited for, or a new one. What differs in a living
   * one's other fields is left as it is.
   * @throws what `spawn` throws.
   */
  async acquire(
    input: SpawnInput,
    options: CallOptions & { onStage?: OnStage },
  ): Promise<{ sandbox: SandboxRow; made: boolean }> {
    const { ownerId, template: _, ...own } = input;
    const { name } = own;
    if (name === undefined) throw new BadRequest("name is missing: it says which sandbox is wanted");
    checkSpawn(own);
    await this.#directory.loaded(options);
    const wanted = { ownerId: parseOwnerId(ownerId), name };
    const spawn = async (waitedMs: number) => (await this.spawn(input, { ...options, waitedMs })).sandbox;
    const expire = (id: SandboxId) => this.#expire(id, options).then(() => undefined);
    const { signal } = options;
    const listed = (provider: RuntimeProvider) => this.#gates.ofProvider(provider).wait(signal);
    return acquireNamed(this.#context, wanted, { signal, named: this.#named, spawn, expire, listed });
  }

  /** What a spawn would meet now; reserves nothing. @throws what `spawn` throws for a bad request. */
  async admission(input: SpawnInput): Promise<AdmissionDecision> {
    const { store, defaults, limits, pool, queue, registry, templates } = this.#context;
    const { ttlMs, ...rest } = await templates.expand(input);
    const provider = this.#provider(rest, registry);
    const plan = planSpawn(rest, provider, this.#context);
    const applied = limits.current(plan.ownerId);
    if (ttlMs !== undefined && ttlMs <= 0) checkTtl(ttlMs, applied);
    const wanted = { ownerId: plan.ownerId, provider: provider.name, rules: pool.rules };
    return decideAdmission({
      store,
      refused: this.#context.drain.since !== undefined || registry.refusal(provider.name) !== undefined,
      limits: applied,
      overflow: defaults.spawnOverflow,
      queueHasPlace: queue.hasPlace(plan.ownerId),
      wanted: plan,
      ttlMs,
      ...(pool.enabled && {
        pool: { overflow: pool.settings.overflow, denial: () => store.sandboxes.poolDenial(wanted) },
      }),
    });
  }

  /** VMs and users of the pool, and how many there may be; undefined: it is off. */
  poolStatus(): Promise<(PoolInUse & PoolRules) | undefined> {
    return this.#context.pool.inUse(this.#context.store.sandboxes);
  }

  /** @throws NotFound for unknown and destroyed ones. */
  async get(id: string): Promise<SandboxRow> {
    const row = await this.#context.store.sandboxes.get(id as SandboxId);
    if (row === undefined) throw sandboxNotFound(id);
    if (row.state === "destroyed") throw sandboxGone(row);
    return row;
  }

  /** Whose a sandbox is, destroyed ones and spawns that wait included; empty: nobody's. @returns undefined for an id never seen. */
  async ownerOf(id: string): Promise<string | undefined> {
    const { live, store } = this.#context;
    return (
      live.ownerOf(id) ??
      this.#destroys.ownerOfWithdrawn(id) ??
      (await store.sandboxes.get(id as SandboxId))?.ownerId
    );
  }

  /** @param options.answer what the page takes is asked for here. */
  list(request: ListRequest, options?: ListOptions): Promise<ListPage> {
    return listSandboxes(this.#context.store, request, options);
  }

  /** As `list`, and what each that runs uses now. @throws BadRequest as `list`, and for a page of too many. */
  usage(request: ListRequest, options: ListOptions & CallOptions): Promise<UsagePage> {
    return listUsage(request, {
      list: () => this.list(request, options),
      stats: (id, call) => this.stats(id, call),
      signal: options.signal,
      onFault: (id, err) =>
        this.#context.logger.error({ sandbox_id: id, err }, "what a sandbox uses could not be told"),
    });
  }

  /** Idempotent. @throws NotFound for an id never seen; ProviderError or Unavailable while it is not confirmed. */
  async destroy(id: string, options: CallOptions): Promise<void> {
    await this.#directory.loaded(options);
    await this.#destroys.destroy(id, { signal: options.signal, reason: "requested" });
  }

  /** Destroys everything that has expired, or of one owner alone, now. @returns how many are gone. */
  async prune(options: CallOptions & { ownerId?: string }): Promise<number> {
    const { live, clock, logger } = this.#context;
    await this.#directory.loaded(options);
    const now = clock.now();
    const ofOwner = ({ ownerId }: SandboxRow) => options.ownerId === undefined || options.ownerId === ownerId;
    const due = live
      .all()
      .filter((entry) => ofOwner(entry.row) && entry.work?.kind !== "reserving" && !hasTimeLeft(entry, now));
    let pruned = await this.#failed.sweep(options);
    await boundedParallel(due, parallelDestroys, async ({ row }) => {
      try {
        if (await this.#expire(row.id, options)) pruned++;
      } catch (error) {
        if (options.signal.aborted) throw options.signal.reason;
        logger.warn({ sandbox_id: row.id, err: error }, "an expired sandbox could not be pruned");
      }
    });
    return pruned;
  }

  /** Sets the expiry to now + ttl. @throws BadRequest, ResourceLimit, Conflict, Unavailable: see ExtendFlow. */
  async extend(id: string, ttlMs: number, options: CallOptions): Promise<SandboxRow> {
    try {
      await this.#directory.loaded(options);
      return await this.#extends.extend(id, ttlMs, options);
    } catch (error) {
      if (error instanceof ResourceLimit)
        this.#reportLimit(this.#context.live.get(id)?.row.ownerId ?? "", "extend", error, id);
      throw error;
    }
  }

  /** As memory has it now. @throws NotFound; Conflict when it does not run; Unavailable when it cannot be reached. */
  running(id: string): RunningSandbox {
    return this.#context.live.running(id);
  }

  /** Hot path: no I/O but right after a start, when the sandbox is adopted first. @throws as `running`. */
  locate(id: string, options: CallOptions): Promise<RunningSandbox> {
    return this.#directory.running(id, options);
  }

  /** Console lines, newest last. @throws NotFound, Conflict or Unavailable, as `running`, for one whose provider is not enabled. */
  async logs(id: string, lines: number, options: CallOptions): Promise<string[]> {
    if (!Number.isInteger(lines) || lines < 1 || lines > longestLog) {
      throw new BadRequest(`lines must be a whole number from 1 to ${longestLog}, not ${lines}`);
    }
    const entry = await this.#directory.locate(id, options);
    if (entry.provider === undefined) throw notRunning(entry.row);
    const { provider, runtimeId } = entry;
    const call = { signal: options.signal, lines };
    return withItsEnd(this, id, options, () => provider.logs(runtimeId, call));
  }

  /** @throws as `locate`; Unavailable when the sandbox has not told in time. */
  async stats(id: string, options: CallOptions): Promise<RuntimeStats> {
    using deadline = deadlineAfter(probeDeadlineMs, options.signal);
    try {
      return await inSandbox(this, id, deadline, ({ operations }) =>
        abortable(
          this.#figures.of(id, (look) => abortable(operations.stats(look), look.signal)),
          deadline.signal,
        ),
      );
    } catch (error) {
      if (options.signal.aborted || !deadline.signal.aborted) throw error;
      const message = `sandbox "${id}" has not told what it uses within ${probeDeadlineMs / 1_000} s; try again`;
      throw new Unavailable(message, { cause: error, retryAfterS: 5 });
    }
  }

  /** Calls back when a sandbox starts running and when it stops. */
  subscribe(listener: SandboxListener): () => void {
    return this.#context.live.subscribe(listener);
  }

  /** Destroys every sandbox: `server.destroy_on_exit`. Failures are logged; their intents stay. */
  async destroyAll(options: CallOptions): Promise<void> {
    const { live, logger } = this.#context;
    await boundedParallel(live.all(), parallelDestroys, async ({ row }) => {
      try {
        await this.#destroys.destroy(row.id, { signal: options.signal, reason: "shutdown" });
      } catch (error) {
        logger.warn({ sandbox_id: row.id, err: error }, "a sandbox could not be destroyed at shutdown");
      }
    });
  }

  /** Somebody may hold more than before: spawns that wait get their turn. */
  limitsChanged(): void {
    this.#context.queue.capacityFreed();
  }

  /** Refuses the spawns that wait for capacity, now and from now on: the first step of a stop. */
  refuseWaiting(): void {
    this.#context.queue.close();
  }

  /** Refuses what waits, undoes spawns under way, lets destroys under way finish, for 20 s at most. Sandboxes stay. */
  async [Symbol.asyncDispose](): Promise<void> {
    if (this.#closed) return;
    this.#closed = true;
    const { queue, expiry } = this.#context;
    queue.close();
    expiry[Symbol.dispose]();
    this.#expires.close();
    this.#destroys.close();
    using deadline = deadlineAfter(closeDeadlineMs);
    await abortable(this.#settled(), deadline.signal).catch((err: unknown) =>
      this.#context.logger.warn(
        { err },
        "a provider does not answer: what is under way is left to the next start",
      ),
    );
  }

  async #settled(): Promise<void> {
    await this.#spawns.close(new ShuttingDown());
    const underWay = this.#context.live.all().flatMap(({ work }) => (work === undefined ? [] : [work.done]));
    await Promise.allSettled(underWay);
  }

  /** @returns whether it is gone: whoever extends it at this moment keeps it. */
  #expire(id: SandboxId, { signal }: CallOptions): Promise<boolean> {
    const unless = (entry: LiveSandbox) => hasTimeLeft(entry, this.#context.clock.now());
    return this.#destroys.destroy(id, { signal, reason: "expired", inLine: true, unless });
  }

  #plan(input: Omit<SpawnInput, "template">): SpawnPlan {
    const provider = this.#provider(input, this.#context.registry);
    try {
      return planSpawn(input, provider, this.#context);
    } catch (error) {
      if (error instanceof ResourceLimit) this.#reportLimit(parseOwnerId(input.ownerId), "spawn", error);
      throw error;
    }
  }

  #provider(input: SpawnInput, registry: ProviderRegistry): RuntimeProvider {
    return input.provider ? registry.get(input.provider) : registry.default();
  }

  #reportLimit(ownerId: string, operation: string, error: ResourceLimit, sandboxId = ""): void {
    const data = { operation, ...ownerData(ownerId), ...error.details, error: error.message };
    this.#context.events.emit({ type: "resource.limit", sandboxId, ownerId, data });
  }
}
