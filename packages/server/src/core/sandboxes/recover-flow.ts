import { abortable } from "../../platform/abortable.ts";
import { deadlineAfter } from "../../platform/deadline.ts";
import { RuntimeGone, type RuntimeProvider, type SandboxOperations, Unavailable } from "../../ports/index.ts";
import { callDeadlineMs, expiresInMs, messageOf, type SandboxContext } from "./context.ts";
import type { DestroyFlow } from "./destroy-flow.ts";
import type { LiveSandbox } from "./live-sandboxes.ts";

/** What happens to sandboxes that nobody asked anything of. Each method leaves a sandbox alone that is worked on. */
export class RecoverFlow {
  readonly #context: SandboxContext;
  readonly #destroys: DestroyFlow;

  constructor(context: SandboxContext, destroys: DestroyFlow) {
    this.#context = context;
    this.#destroys = destroys;
  }

  /** Its runtime is alive: reconnects when needed and tells it when to end itself. */
  adopt(entry: LiveSandbox, provider: RuntimeProvider): Promise<void> {
    return this.#reach(entry, () => this.#connect(entry, provider));
  }

  /** Its provider does not answer: a sandbox that still answers by itself stays as it is. */
  async unreachable(entry: LiveSandbox, why: string): Promise<void> {
    await this.#reach(entry, async () => {
      if (entry.operations === undefined) throw new Unavailable(why);
      await this.#tellExpiry(entry, entry.operations);
    });
  }

  /** A sandbox that cannot be reached becomes unhealthy; one whose runtime turns out to be dead has vanished. */
  async #reach(entry: LiveSandbox, reach: () => Promise<void>): Promise<void> {
    if (entry.work !== undefined) return;
    let gone: string | undefined;
    await this.#context.live.work(entry, "other", async () => {
      try {
        await reach();
      } catch (error) {
        if (error instanceof RuntimeGone) gone = error.message;
        else await this.#markUnhealthy(entry, `it could not be reached: ${messageOf(error)}`);
      }
    });
    if (gone !== undefined) await this.vanished(entry, gone);
  }

  /** Its runtime ended without having been asked to: the sandbox is kept in state error until it expires. */
  async vanished(entry: LiveSandbox, why: string): Promise<void> {
    const { live, store, clock, events, queue } = this.#context;
    if (entry.work !== undefined || (entry.row.state !== "running" && entry.row.state !== "unhealthy"))
      return;
    await live.work(entry, "other", async () => {
      const change = { state: "error", error: `its runtime ended: ${why}`, updatedAt: clock.now() } as const;
      const row = await store.sandboxes.update(entry.row.id, ["running", "unhealthy"], change);
      if (row === undefined) return;
      entry.row = row;
      live.stop(entry);
      queue.capacityFreed();
      const data = { provider: row.provider, error: row.error };
      events.emit({ type: "sandbox.error", sandboxId: row.id, data });
      await this.#removeRemains(entry);
    });
  }

  /** Takes over what the store has: a write that failed may have been made all the same. */
  async resync(entry: LiveSandbox): Promise<void> {
    const { live, store, expiry } = this.#context;
    if (entry.work !== undefined) return;
    await live.work(entry, "other", async () => {
      const row = await store.sandboxes.get(entry.row.id);
      if (row === undefined || row.state === "destroyed") {
        this.#destroys.forget(entry);
        return;
      }
      entry.row = row;
      if (row.state !== "running" || row.destroyRequested) live.stop(entry);
      if (row.state !== "creating") expiry.set(row.id, row.expiresAt);
    });
  }

  async #connect(entry: LiveSandbox, provider: RuntimeProvider): Promise<void> {
    const { live, store, clock, events } = this.#context;
    using deadline = deadlineAfter(callDeadlineMs);
    const { runtimeId } = entry.row;
    await abortable(provider.adopt(runtimeId, deadline), deadline.signal);
    const operations = provider.sandbox(runtimeId);
    await this.#tellExpiry(entry, operations);
    if (entry.row.state === "unhealthy") {
      const change = { state: "running", error: null, updatedAt: clock.now() } as const;
      entry.row = (await store.sandboxes.update(entry.row.id, ["unhealthy"], change)) ?? entry.row;
    }
    if (entry.operations !== undefined || entry.row.state !== "running") return;
    const data = { action: "adopted_runtime", provider: provider.name, image: entry.row.image };
    events.emit({ type: "reconcile.action", sandboxId: entry.row.id, data });
    live.start(entry, operations, "adopted");
  }

  async #tellExpiry(entry: LiveSandbox, operations: SandboxOperations): Promise<void> {
    using deadline = deadlineAfter(callDeadlineMs);
    const lifeMs = expiresInMs(entry.row, this.#context);
    await abortable(operations.setExpiry(lifeMs, deadline), deadline.signal);
  }

  async #markUnhealthy(entry: LiveSandbox, why: string): Promise<void> {
    const { live, store, clock } = this.#context;
    if (entry.row.state !== "running" && entry.row.state !== "unhealthy") return;
    if (entry.row.state === "unhealthy" && entry.row.error === why) return;
    const change = { state: "unhealthy", error: why, updatedAt: clock.now() } as const;
    const row = await store.sandboxes.update(entry.row.id, ["running", "unhealthy"], change);
    if (row === undefined) return;
    entry.row = row;
    live.stop(entry);
  }

  /** What a dead runtime left behind goes; the next reconciliation finds what could not be removed now. */
  async #removeRemains(entry: LiveSandbox): Promise<void> {
    if (entry.provider === undefined) return;
    try {
      await this.#destroys.removeRuntime(entry.provider, entry.row.runtimeId);
    } catch (error) {
      this.#context.logger.warn(
        { sandbox_id: entry.row.id, err: error },
        "the remains of a runtime could not be removed; the reconciler repeats it",
      );
    }
  }
}
