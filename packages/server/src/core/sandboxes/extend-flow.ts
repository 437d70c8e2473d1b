import { abortable } from "../../platform/abortable.ts";
import { deadlineAfter } from "../../platform/deadline.ts";
import { SharedNext } from "../../platform/shared-next.ts";
import { TurnsByName } from "../../platform/turns-by-name.ts";
import { type CallOptions, Conflict, RuntimeGone, type SandboxRow, Unavailable } from "../../ports/index.ts";
import { callDeadlineMs, expiresInMs, type SandboxContext } from "./context.ts";
import {
  ends,
  hasTimeLeft,
  type LiveSandbox,
  notRunning,
  sandboxNotFound,
  workerUnavailable,
} from "./live-sandboxes.ts";
import { endsItselfUntilTold, writeTold } from "./own-switch.ts";
import type { RecoverFlow } from "./recover-flow.ts";
import { logSandbox } from "./sandbox-log.ts";
import { checkTtl } from "./spawn-plan.ts";

const extendableStates = ["running", "unhealthy"] as const;

/**
 * Moves expiries. The store is the truth: a sandbox that cannot be told now is told at the next reconciliation, long
 * before its own switch fires. Extensions of one sandbox wait for one another, and share what tells it of them: thousands that
 * each looked whether they may, and told it what the last one came to, would cost the square of their number.
 */
export class ExtendFlow {
  readonly #context: SandboxContext;
  readonly #recover: RecoverFlow;
  /** By sandbox. */
  readonly #moves = new TurnsByName();
  readonly #tells = new SharedNext<void>();

  constructor(context: SandboxContext, recover: RecoverFlow) {
    this.#context = context;
    this.#recover = recover;
  }

  /**
   * Sets the expiry to now + ttl, later or earlier than it was.
   * @throws NotFound; BadRequest for a ttl that is not positive; ResourceLimit above the maximum; Conflict when the
   *   sandbox expired or does not run; Unavailable when its provider is not enabled: nobody can tell it.
   */
  async extend(id: string, ttlMs: number, options: CallOptions): Promise<SandboxRow> {
    const { live, limits, logger } = this.#context;
    const entry = live.get(id);
    if (entry === undefined) throw await this.#missing(id);
    const lifeMs = checkTtl(ttlMs, limits.current(entry.row.ownerId));
    const held = await this.#moves.run(id, () => this.#moveInTurn(id, lifeMs, options), options);
    const { row } = held;
    logSandbox(
      logger,
      row,
      { event: "sandbox.extend", outcome: "ok" },
      `sandbox lives until ${row.expiresAt.toISOString()}`,
    );
    await Promise.all([this.#tell(held, options), this.#context.beforeAnswered?.()]);
    return row;
  }

  async #moveInTurn(id: string, lifeMs: number, { signal }: CallOptions): Promise<LiveSandbox> {
    const { live } = this.#context;
    // Whoever waited for the extension before to be done, such as a destroy, comes first.
    await live.turn();
    let entry = live.get(id);
    while (entry?.work?.kind === "other") {
      await live.finished(entry.work, signal);
      entry = live.get(id);
    }
    signal.throwIfAborted();
    if (entry === undefined) throw sandboxNotFound(id);
    if (entry.work !== undefined) {
      const { kind } = entry.work;
      // Which is what ends it, where it is destroyed by now.
      throw notExtendable(entry.row, hasTimeLeft(entry, this.#context.clock.now()) ? kind : undefined);
    }
    const held = entry;
    await live.work(held, "other", () => this.#moveExpiry(held, lifeMs));
    return held;
  }

  /** Why the store took no new expiry of a sandbox: somebody else changed it, of which memory has not heard. */
  async #unmoved({ id }: SandboxRow): Promise<Error> {
    const row = await this.#context.store.sandboxes.get(id);
    if (row === undefined) return sandboxNotFound(id);
    if (!isExtendable(row)) return notExtendable(row);
    return new Conflict(
      `sandbox "${id}" cannot be extended: it changed meanwhile, or another service answers for it; try again`,
    );
  }

  /** Why a sandbox is not in memory. */
  async #missing(id: string): Promise<Error> {
    const row = await this.#context.store.sandboxes.get(id as SandboxRow["id"]);
    if (row === undefined) return sandboxNotFound(id);
    if (!this.#context.registry.reaches(row)) return workerUnavailable(row);
    return row.state === "error" ? notExtendable(row) : notRunning(row);
  }

  async #moveExpiry(entry: LiveSandbox, ttlMs: number): Promise<void> {
    const { store, clock, expiry, registry } = this.#context;
    const { row } = entry;
    const now = clock.now();
    if (!isExtendable(row) || !hasTimeLeft(entry, now)) throw notExtendable(row);
    if (entry.provider === undefined) {
      const why = registry.absence(row.provider);
      throw new Unavailable(
        `sandbox "${row.id}" cannot be extended now: ${why}; it expires at ${row.expiresAt.toISOString()}`,
      );
    }
    const expiresAt = new Date(now.getTime() + ttlMs);
    const change = {
      expiresAt,
      endsItselfAt: endsItselfUntilTold(row, expiresAt, this.#context),
      updatedAt: now,
    };
    const moved = await store.sandboxes.update(row.id, extendableStates, change, this.#context.fence);
    if (moved === undefined) throw await this.#unmoved(row);
    entry.row = moved;
    entry.outdated = false;
    expiry.set(moved.id, moved.expiresAt);
  }

  /** Resolves when it was told of its expiry as it is now, or of a later one, and once its caller waits no longer. */
  async #tell(entry: LiveSandbox, options: CallOptions): Promise<void> {
    using deadline = deadlineAfter(callDeadlineMs, options.signal);
    const told = this.#tells.run(entry, () => this.#tellNow(entry));
    try {
      await abortable(told, deadline.signal);
    } catch (error) {
      // Whoever tells it says what becomes of that.
      if (!deadline.signal.aborted) throw error;
    }
  }

  /** @throws RuntimeGone when it turns out to have ended. */
  async #tellNow(entry: LiveSandbox): Promise<void> {
    if (entry.operations === undefined) return;
    using deadline = deadlineAfter(callDeadlineMs);
    try {
      const { expiresAt } = entry.row;
      const lifeMs = expiresInMs(entry.row, this.#context);
      await abortable(entry.operations.setExpiry(lifeMs, deadline), deadline.signal);
      await this.#wasTold(entry, { expiresAt, lifeMs });
    } catch (error) {
      if (error instanceof RuntimeGone) {
        await this.#recover.suspected(entry, error.message);
        if (entry.row.state === "error") throw error;
      }
      // Somebody ends it meanwhile: nobody is left to tell.
      if (entry.operations === undefined) return;
      this.#context.logger.warn(
        { sandbox_id: entry.row.id, err: error },
        "a sandbox could not be told its new expiry; it is told at the next reconciliation",
      );
    }
  }

  /** What works on it by now, or has moved its expiry, ends it or tells it anew. */
  async #wasTold(entry: LiveSandbox, told: { expiresAt: Date; lifeMs: number }): Promise<void> {
    const { live, clock } = this.#context;
    if (entry.work !== undefined || live.get(entry.row.id) !== entry) return;
    if (entry.row.expiresAt.getTime() !== told.expiresAt.getTime()) return;
    const at = new Date(clock.now().getTime() + told.lifeMs);
    await live.work(entry, "other", () => writeTold(entry, at, this.#context));
  }
}

function isExtendable(row: SandboxRow): boolean {
  return (row.state === "running" || row.state === "unhealthy") && !row.destroyRequested;
}

function notExtendable(row: SandboxRow, doing?: string): Conflict {
  const still = "and cannot be extended";
  if (row.state !== "expired" && (row.destroyRequested || doing === "destroy"))
    return ends(row, "destroyed", `is being destroyed ${still}`);
  switch (row.state) {
    case "running":
    case "unhealthy":
    case "expired":
      return ends(row, "expired", `expired at ${row.expiresAt.toISOString()} ${still}`);
    case "error":
      return ends(row, "error", `is in state error ${still}`);
    default:
      return new Conflict(`sandbox "${row.id}" is in state ${row.state} ${still}`);
  }
}
