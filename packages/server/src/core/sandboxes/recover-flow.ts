import { abortable } from "../../platform/abortable.ts";
import { deadlineAfter } from "../../platform/deadline.ts";
import { RuntimeGone, type RuntimeProvider } from "../../ports/index.ts";
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

  /**
   * Its runtime is alive: reconnects when needed and tells it when to end itself.
   * A sandbox that cannot be reached becomes unhealthy; one whose runtime turns out to be dead has vanished.
   */
  async adopt(entry: LiveSandbox, provider: RuntimeProvider): Promise<void> {
    if (entry.work !== undefined) return;
    let gone: string | undefined;
    await this.#context.live.work(entry, "other", async () => {
      try {
        await this.#connect(entry, provider);
      } catch (error) {
        if (error instanceof RuntimeGone) gone = error.message;
        else await this.#markUnhealthy(entry, `it could not be reached: ${messageOf(error)}`);
      }
    });
    if (gone !== undefined) await this.vanished(entry, gone);
  }

  /** Its provider does not answer. */
  async unreachable(entry: LiveSandbox, why: string): Promise<void> {
    if (entry.work !== undefined) return;
    await this.#context.live.work(entry, "other", () => this.#markUnhealthy(entry, why));
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

  async #connect(entry: LiveSandbox, provider: RuntimeProvider): Promise<void> {
    const { live, store, clock, events } = this.#context;
    using deadline = deadlineAfter(callDeadlineMs);
    const { runtimeId } = entry.row;
    await abortable(provider.adopt(runtimeId, deadline), deadline.signal);
    const operations = provider.sandbox(runtimeId);
    const lifeMs = expiresInMs(entry.row, this.#context);
    await abortable(operations.setExpiry(lifeMs, deadline), deadline.signal);
    if (entry.row.state === "unhealthy") {
      const change = { state: "running", error: null, updatedAt: clock.now() } as const;
      entry.row = (await store.sandboxes.update(entry.row.id, ["unhealthy"], change)) ?? entry.row;
    }
    if (entry.operations !== undefined || entry.row.state !== "running") return;
    const data = { action: "adopted_runtime", provider: provider.name, image: entry.row.image };
    events.emit({ type: "reconcile.action", sandboxId: entry.row.id, data });
    live.start(entry, operations, "adopted");
  }

  async #markUnhealthy(entry: LiveSandbox, why: string): Promise<void> {
    const { live, store, clock } = this.#context;
    if (entry.row.state !== "running" && entry.row.state !== "unhealthy") return;
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
