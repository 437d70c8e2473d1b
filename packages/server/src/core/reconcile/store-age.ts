import { abortable } from "../../platform/abortable.ts";
import { deadlineAfter } from "../../platform/deadline.ts";
import type { Logger } from "../../platform/logger.ts";
import { messageOf } from "../../platform/message-of.ts";
import type { Birth, InventoryEntry, RuntimeId, RuntimeProvider, Store } from "../../ports/index.ts";

/**
 * Whether the store may lack sandboxes that run, because it was lost or is an older one. "open": it looks like the newest
 * one, and providers that keep the evidence themselves have not been heard yet.
 */
export type Age = "open" | "newest" | "older";

/** Longer than any inventory may take. */
const patienceMs = 60_000;

/** What keeps that over the end of the process. */
export interface Recovery {
  readonly recovering: boolean;
  /** A runtime was found that is younger than the store. */
  outlived(): Promise<void>;
  recovered(): Promise<void>;
}

export interface StoreAgeOptions {
  providers: readonly RuntimeProvider[];
  /** Without it the store is the newest one. */
  recovery: Recovery | undefined;
  store: { sandboxes: Pick<Store["sandboxes"], "lastBirth" | "countBirths"> };
  logger: Logger;
  /** Called when the age is known first, and whenever the store turns out to be older: before anybody who waits goes on. */
  onTold: (age: Exclude<Age, "open">) => void;
}

/**
 * All evidence of the store's age in one place: what the files say, and the births in what providers list. Passes tell what
 * their providers list before they act on any of it, and end nothing that an older store would not know, or have as over,
 * before every provider was heard once or did not answer.
 *
 * A provider that answers later may still show that the store is an older one; what was ended by then is gone.
 */
export class StoreAge {
  readonly #options: StoreAgeOptions;
  /** Not heard yet, while the age is open. */
  readonly #unheard: Set<RuntimeProvider>;
  /** Nothing that they list is missing in the store any more, since it is known to be an older one. */
  readonly #complete = new Set<RuntimeProvider>();
  /** Without a row, though the store has counted their births: spawns left them that were taken back. */
  readonly #leftBySpawns = new Map<RuntimeProvider, ReadonlySet<RuntimeId>>();
  /** The highest number of each run that may show a store to be older; counted when nothing is missing any more, so as to show nothing again. */
  readonly #younger = new Map<string, number>();
  readonly #told = Promise.withResolvers<void>();
  #age: Age;
  /** One at a time: the end of a recovery changes what births say, and one beginning is told once. */
  #turn: Promise<unknown> = Promise.resolve();

  constructor(options: StoreAgeOptions) {
    this.#options = options;
    const { recovery, providers } = options;
    this.#unheard = new Set(providers);
    this.#age = recovery === undefined ? "newest" : recovery.recovering ? "older" : "open";
    if (this.#age !== "open") this.#told.resolve();
  }

  get current(): Age {
    return this.#age;
  }

  /**
   * Waits until the age is not open any more, which somebody who does not get heard may put off for a while.
   * @throws the signal's reason.
   */
  async told(signal: AbortSignal): Promise<void> {
    using patience = deadlineAfter(patienceMs, signal);
    try {
      await abortable(this.#told.promise, patience.signal);
    } catch {
      signal.throwIfAborted();
      if (this.#age === "open") this.#tell("newest");
    }
  }

  /**
   * What a provider lists that no row names.
   * @param runtimes without those of this process, which are younger than any store it began with.
   * @throws what keeps the store from saying what it has counted; it has to be heard again then.
   */
  async hear(provider: RuntimeProvider, runtimes: readonly InventoryEntry[]): Promise<void> {
    await this.#inTurn(() => this.#hear(provider, runtimes));
  }

  /** It does not say what it runs: nobody waits for that. */
  silent(provider: RuntimeProvider): void {
    this.#wasHeard(provider);
  }

  /** Whether a runtime that was heard of is a sandbox that the store lacks. */
  lacks(provider: RuntimeProvider, { runtimeId }: InventoryEntry): boolean {
    return this.#age === "older" && this.#leftBySpawns.get(provider)?.has(runtimeId) !== true;
  }

  /**
   * Whatever a provider lists is in the store now, or is being ended.
   * @param listed all of it, also what has a row: what a process before this one took in has not been counted. Without those of
   *   this process, as in `hear`.
   * @throws what keeps the store from counting; it has to be completed again then.
   */
  async complete(provider: RuntimeProvider, listed: readonly InventoryEntry[]): Promise<void> {
    await this.#inTurn(() => this.#completed(provider, listed));
  }

  async #hear(provider: RuntimeProvider, runtimes: readonly InventoryEntry[]): Promise<void> {
    const left = new Set<RuntimeId>();
    let younger: RuntimeId | undefined;
    for (const { runtimeId, note } of runtimes) {
      if (note?.birth === undefined) continue;
      const { run, number } = note.birth;
      if (number <= (await this.#options.store.sandboxes.lastBirth(run))) left.add(runtimeId);
      else {
        this.#countLater(note.birth);
        younger ??= runtimeId;
      }
    }
    this.#leftBySpawns.set(provider, left);
    if (left.size < runtimes.length) this.#complete.delete(provider);
    if (younger !== undefined && this.#age !== "older") await this.#isOlder(provider, younger);
    this.#wasHeard(provider);
  }

  async #completed(provider: RuntimeProvider, listed: readonly InventoryEntry[]): Promise<void> {
    if (this.#age !== "older") return;
    this.#complete.add(provider);
    for (const { note } of listed) if (note?.birth !== undefined) this.#countLater(note.birth);
    const { recovery, providers, store } = this.#options;
    if (!providers.every((one) => this.#complete.has(one))) return;
    await store.sandboxes.countBirths([...this.#younger].map(([run, number]) => ({ run, number })));
    this.#younger.clear();
    this.#complete.clear();
    this.#age = "newest";
    await recovery?.recovered();
  }

  #countLater({ run, number }: Birth): void {
    this.#younger.set(run, Math.max(number, this.#younger.get(run) ?? 0));
  }

  #inTurn(task: () => Promise<void>): Promise<void> {
    const done = this.#turn.then(task);
    this.#turn = done.catch(() => undefined);
    return done;
  }

  #wasHeard(provider: RuntimeProvider): void {
    this.#unheard.delete(provider);
    if (this.#age === "open" && this.#unheard.size === 0) this.#tell("newest");
  }

  async #isOlder(provider: RuntimeProvider, runtimeId: RuntimeId): Promise<void> {
    const { recovery, logger } = this.#options;
    logger.warn(
      { provider: provider.name, runtime_id: runtimeId },
      "the database is older than a sandbox that runs: those it does not know are taken in from their records; quotas, " +
        "templates, and keys that were made or revoked are as of the backup",
    );
    // A process that dies after it took the first one in leaves births that say less.
    try {
      await recovery?.outlived();
    } catch (err) {
      logger.warn({ err, error: messageOf(err) }, "the data directory could not be marked as newer");
    }
    this.#tell("older");
  }

  #tell(age: Exclude<Age, "open">): void {
    this.#age = age;
    this.#options.onTold(age);
    this.#told.resolve();
  }
}
