import type { Clock, SandboxId } from "../../ports/index.ts";
import { type LiveSandbox, mayRun } from "../sandboxes/live-sandboxes.ts";
import type { Age } from "./store-age.ts";

/** How long a sandbox that has expired by an older store may wait for its provider to say whether it runs. */
const patienceMs = 30 * 60_000;
/** While it is open whether the store is an older one, what expires so soon is not ended: it is not open for longer. */
const soonMs = 60_000;

/**
 * Expiries that were read from the store. In an older one each was true once, and may have been put off since, so that the
 * inventory of a provider says first whether the sandbox still runs.
 */
export class ReadExpiries {
  readonly #live: { all(): LiveSandbox[] };
  readonly #expiry: { set(id: SandboxId, at: Date): void };
  readonly #clock: Pick<Clock, "now">;
  /** Until somebody changes it, which is newer than any backup. */
  readonly #asRead = new WeakMap<LiveSandbox, Date>();

  constructor(options: {
    live: { all(): LiveSandbox[] };
    expiry: { set(id: SandboxId, at: Date): void };
    clock: Pick<Clock, "now">;
  }) {
    this.#live = options.live;
    this.#expiry = options.expiry;
    this.#clock = options.clock;
  }

  /** Memory has a sandbox from its row. */
  read(entry: LiveSandbox, age: Age): void {
    const { row } = entry;
    if (row.state === "creating") return;
    if (mayRun(row)) this.#asRead.set(entry, row.expiresAt);
    this.#follow(entry, age);
  }

  /** What an age means for all that were read, once it is told. */
  told(age: Exclude<Age, "open">): void {
    for (const entry of this.#live.all()) {
      const read = this.#asRead.get(entry);
      if (read === undefined || read.getTime() !== entry.row.expiresAt.getTime()) continue;
      if (age === "older" || entry.outdated) this.#follow(entry, age);
    }
  }

  #follow(entry: LiveSandbox, age: Age): void {
    const { id, expiresAt } = entry.row;
    const nowMs = this.#clock.now().getTime();
    const soon = expiresAt.getTime() <= nowMs + soonMs;
    entry.outdated = mayRun(entry.row) && (age === "older" || (age === "open" && soon));
    const leastMs = entry.outdated ? nowMs + patienceMs : 0;
    this.#expiry.set(id, new Date(Math.max(expiresAt.getTime(), leastMs)));
  }
}
