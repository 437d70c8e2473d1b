import { deadlineAfter } from "../../platform/deadline.ts";
import { type CallOptions, type SandboxId, type Store, Unavailable } from "../../ports/index.ts";
import type { ProviderRegistry } from "../providers/provider-registry.ts";
import type { StartGates } from "../scheduling/gate.ts";
import {
  type LiveSandbox,
  type LiveSandboxes,
  mayRun,
  notRunning,
  type RunningSandbox,
  sandboxNotFound,
  workerUnavailable,
} from "./live-sandboxes.ts";
import type { RecoverFlow } from "./recover-flow.ts";

/** How long a request waits for the start of the service, milliseconds. */
const startPatienceMs = 10_000;

/**
 * Finds sandboxes: everything that is answered from memory asks here first. Right after a start memory is still being
 * filled and sandboxes are still being adopted; requests wait for the one they mean instead of being refused.
 */
export class SandboxDirectory {
  readonly #live: LiveSandboxes;
  readonly #gates: StartGates;
  readonly #recover: Pick<RecoverFlow, "adopt">;
  readonly #store: Pick<Store, "sandboxes">;
  readonly #registry: Pick<ProviderRegistry, "reaches">;

  constructor(options: {
    live: LiveSandboxes;
    gates: StartGates;
    recover: Pick<RecoverFlow, "adopt">;
    store: Pick<Store, "sandboxes">;
    registry: Pick<ProviderRegistry, "reaches">;
  }) {
    this.#registry = options.registry;
    this.#store = options.store;
    this.#live = options.live;
    this.#gates = options.gates;
    this.#recover = options.recover;
  }

  /**
   * @throws NotFound; Conflict for one in state error; Unavailable when the service does not come up in time, or
   *   the sandbox is another worker's.
   */
  async locate(id: string, options: CallOptions): Promise<LiveSandbox> {
    await this.loaded(options);
    const entry = this.#live.get(id);
    if (entry !== undefined) return entry;
    const row = await this.#store.sandboxes.get(id as SandboxId);
    if (row === undefined) throw sandboxNotFound(id);
    throw this.#registry.reaches(row) ? notRunning(row) : workerUnavailable(row);
  }

  /** Waits until memory holds what the store has. @throws Unavailable when that takes too long. */
  async loaded(options: CallOptions): Promise<void> {
    if (this.#gates.loaded.opened) return;
    using deadline = deadlineAfter(startPatienceMs, options.signal);
    try {
      await this.#gates.loaded.wait(deadline.signal);
    } catch (error) {
      if (options.signal.aborted) throw options.signal.reason;
      throw new Unavailable(
        "the service is starting and has not read its sandboxes yet; try again in a moment",
        {
          cause: error,
          retryAfterS: 1,
        },
      );
    }
  }

  /** @throws NotFound; Conflict when it does not run; Unavailable when it cannot be reached. */
  async running(id: string, options: CallOptions): Promise<RunningSandbox> {
    const entry = await this.locate(id, options);
    if (mayRun(entry.row) && entry.operations === undefined) await this.#adopted(entry, options);
    return this.#live.running(id);
  }

  /**
   * One that was not adopted yet: that is done now, before its turn, also where the last process left it unhealthy. One that did not
   * answer is left alone.
   */
  async #adopted(entry: LiveSandbox, options: CallOptions): Promise<void> {
    if (entry.provider === undefined || entry.failedProbes > 0) return;
    const { work } = entry;
    if (work?.kind === "other") await this.#live.finished(work, options.signal);
    else if (work === undefined) await this.#recover.adopt(entry, entry.provider);
  }
}
