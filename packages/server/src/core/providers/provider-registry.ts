import type { Capability } from "@alcove/wire";
import { abortable } from "../../platform/abortable.ts";
import { deadlineAfter, ShuttingDown } from "../../platform/deadline.ts";
import {
  type CallOptions,
  type Clock,
  type GuardState,
  type MadeAhead,
  NotFound,
  type ProviderCheck,
  type RuntimeProvider,
  type Timer,
  Unavailable,
} from "../../ports/index.ts";
import { FailingProviders } from "./failing-providers.ts";
import { localWorkerId, type ProviderAddress } from "./provider-address.ts";

export interface ProviderHealthEntry {
  name: string;
  healthy: boolean;
  default: boolean;
  latencyMs: number;
  lastChecked: Date;
  error?: string;
  notes: string[];
  capabilities: Capability[];
  /** Why spawns would be refused now, though it is healthy. */
  cannotSpawn?: string;
  /** Of its last inventory; present for providers that list their runtimes and are healthy. */
  runtimeCount?: number;
}

const healthKeptMs = 10_000;
/** Without an answer for so long a provider is told as unhealthy. */
const checkDeadlineMs = 5_000;
/** It may take so long over its answer, which still counts: one that is slow is not taken for one that is gone. */
const answerDeadlineMs = 30_000;
/** Between looks in the background. */
const lookEveryMs = 15_000;
/** A provider that refuses spawns is looked at this often when they are asked for, so that its return is noticed soon. */
const failingLookMs = 2_000;
/** When a refused spawn may succeed, seconds. */
const failingRetryS = 5;
/** For looks under way to undo what they made, when the service stops. */
const endOfLooksMs = 3_000;

/** What a provider said, or that it said nothing in time. */
interface Answer {
  result: ProviderCheck;
  unanswered: boolean;
}

/**
 * The providers that are enabled, and how they are. All of them belong to the local worker; the sandboxes of another
 * are its own to look after, and nothing here reaches them.
 */
export class ProviderRegistry {
  readonly #providers: ReadonlyMap<string, RuntimeProvider>;
  readonly #defaultName: string;
  readonly #clock: Clock;
  readonly #leftOut: ReadonlyMap<string, string>;
  readonly #notes: ReadonlyMap<string, string>;
  /** What each said when its runtimes were listed last. Counting them anew for every look would cost too much. */
  readonly #inventories = new Map<string, { at: Date } & ({ count: number } | { error: string })>();
  /** What the last check of each came to. */
  readonly #found = new Map<string, ProviderHealthEntry>();
  /** The last or current check of each; checks of one provider never overlap, but may wait for one question in turn. */
  readonly #checks = new Map<
    string,
    { startedMs: number; beganMs: number; result: Promise<ProviderHealthEntry>; pending: boolean }
  >();
  /** What each is asked now. One that is slow is asked no second time meanwhile. */
  readonly #questions = new Map<string, { startedMs: number; answer: Promise<Answer> }>();
  readonly #failing = new FailingProviders();
  /** Of which a spawn went otherwise than the last look tells: whether it was refused for want of room. */
  readonly #contradicted = new Map<string, boolean>();
  /** For looks that are due when the one before is old enough. */
  readonly #dueLooks = new Map<string, Timer>();

  /** What providers have not answered yet, even if nobody waits for it any more. */
  readonly #looking = new Set<Promise<ProviderCheck>>();
  readonly #closing = new AbortController();

  /**
   * @param options.leftOut why providers that could have been used were not, by name.
   * @param options.notes what the start found that somebody should know of a provider, by name.
   */
  constructor(options: {
    providers: readonly RuntimeProvider[];
    defaultName: string;
    clock: Clock;
    leftOut?: ReadonlyMap<string, string>;
    notes?: ReadonlyMap<string, string>;
  }) {
    this.#leftOut = options.leftOut ?? new Map();
    this.#notes = options.notes ?? new Map();
    this.#providers = new Map(options.providers.map((provider) => [provider.name, provider]));
    this.#defaultName = options.defaultName;
    this.#clock = options.clock;
    if (!this.#providers.has(options.defaultName)) {
      throw new Error(`the default provider "${options.defaultName}" is not among the enabled ones`);
    }
  }

  get all(): RuntimeProvider[] {
    return [...this.#providers.values()];
  }

  /** Whether what this worker runs can be reached from here: loaded, reconciled, expired and destroyed. */
  reaches({ workerId }: Pick<ProviderAddress, "workerId">): boolean {
    return workerId === localWorkerId;
  }

  /** The provider that has made a sandbox; undefined when its worker is another one, or it is not enabled. */
  find(address: ProviderAddress): RuntimeProvider | undefined {
    return this.reaches(address) ? this.#providers.get(address.provider) : undefined;
  }

  /** The local worker's, as a request names it. @throws NotFound naming the enabled ones. */
  get(name: string): RuntimeProvider {
    const provider = this.#providers.get(name);
    if (provider !== undefined) return provider;
    const why = this.#leftOut.has(name)
      ? this.absence(name)
      : `provider "${name}" does not exist or is not enabled`;
    throw new NotFound(`${why}; enabled: ${[...this.#providers.keys()].join(", ")}`, { what: "provider" });
  }

  /** Why a provider that is not used is not, and the way out. */
  absence(name: string): string {
    const reason = this.#leftOut.get(name);
    if (reason === undefined) return `provider "${name}" is not enabled`;
    return (
      `provider "${name}" was left out at the start: ${reason}; once it works, restart the service, or let it ` +
      `look again and again with providers.${name}.enabled: true`
    );
  }

  default(): RuntimeProvider {
    return this.get(this.#defaultName);
  }

  /** Why it takes no spawns now: its last check failed, and nothing has gone well since. @returns undefined: it does. */
  refusal(name: string): string | undefined {
    const refusal = this.#failing.refusal(name);
    if (refusal !== undefined) this.#lookSoon(name);
    return refusal;
  }

  #lookSoon(name: string): void {
    const beganMs = this.#checks.get(name)?.beganMs ?? Number.NEGATIVE_INFINITY;
    if (this.#clock.monotonicMs() - beganMs >= failingLookMs) this.#look(name);
  }

  /** @throws Unavailable while it takes no spawns. */
  admit(name: string): void {
    const refusal = this.refusal(name);
    if (refusal === undefined) return;
    const details = { reason: "worker_unavailable" };
    throw new Unavailable(refusal, { details, retryAfterS: failingRetryS });
  }

  /** A sandbox was made: whatever a check says that began before, it works. */
  spawned(name: string): void {
    this.#failing.spawned(name, this.#clock.monotonicMs());
    this.#compareWithLook(name, { refused: false });
  }

  /** A spawn was refused for want of room: whether others would be as well is looked at before the next look is due. */
  refusedForRoom(name: string): void {
    this.#compareWithLook(name, { refused: true });
  }

  #compareWithLook(name: string, { refused }: { refused: boolean }): void {
    this.#contradicted.set(name, refused);
    this.#lookWhenDue(name);
  }

  /** A look that began before the spawn ended may say nothing of it: it is compared again at the end of that look. */
  #lookWhenDue(name: string): void {
    const refused = this.#contradicted.get(name);
    const last = this.#checks.get(name);
    if (refused === undefined || last?.pending === true || this.#closing.signal.aborted) return;
    const toldRefused = this.#found.get(name)?.cannotSpawn !== undefined;
    const beganMs = last?.beganMs ?? Number.NEGATIVE_INFINITY;
    const waitMs = beganMs + failingLookMs - this.#clock.monotonicMs();
    if (toldRefused !== refused && waitMs > 0) {
      if (this.#dueLooks.has(name)) return;
      const due = () => {
        this.#dueLooks.delete(name);
        this.#lookWhenDue(name);
      };
      this.#dueLooks.set(name, this.#clock.setTimer(waitMs, due));
      return;
    }
    this.#contradicted.delete(name);
    if (toldRefused !== refused) this.#look(name);
  }

  /** Its runtimes were listed, or could not be: every minute or so, and how it is is looked at along with it. */
  inventoryTaken(name: string, outcome: { count: number } | { error: string }): void {
    const first = !this.#inventories.has(name);
    this.#inventories.set(name, { ...outcome, at: this.#clock.now() });
    if (!first) this.#look(name);
  }

  /** Every provider's health, at most ten seconds old unless `refresh`. */
  health(options: CallOptions & { refresh?: boolean }): Promise<ProviderHealthEntry[]> {
    return Promise.all(this.all.map((provider) => this.healthOf(provider.name, options)));
  }

  /**
   * Every provider as it was found last, a quarter of a minute ago or so, without looking again. Until the first look it counts as
   * healthy when its runtimes could be listed.
   */
  lastKnown(): ProviderHealthEntry[] {
    return this.all.map((provider) => this.#found.get(provider.name) ?? this.#byInventory(provider));
  }

  /** What providers that make runtimes ahead have of them, by name. */
  madeAhead(): { name: string; figures: MadeAhead }[] {
    return this.all.flatMap(({ name, madeAhead }) =>
      madeAhead === undefined ? [] : [{ name, figures: madeAhead }],
    );
  }

  /** The guards of providers that have some, by name. */
  guards(): ({ name: string } & GuardState)[] {
    return this.all.flatMap(({ name, guards = [] }) => guards.map((state) => ({ name, ...state })));
  }

  /** @throws NotFound for a provider that is not enabled. */
  async healthOf(name: string, options: CallOptions & { refresh?: boolean }): Promise<ProviderHealthEntry> {
    const provider = this.get(name);
    const known = this.#checks.get(name);
    const ageMs =
      known === undefined ? Number.POSITIVE_INFINITY : this.#clock.monotonicMs() - known.startedMs;
    if (known !== undefined && (known.pending || (ageMs < healthKeptMs && options.refresh !== true))) {
      return known.result;
    }
    return this.#begin(provider, this.#clock.monotonicMs());
  }

  /**
   * Looks at every provider now and then until it is disposed, so that probes and scrapes have something to tell. Disposing
   * ends looks under way and waits a while for them: a provider that is closed meanwhile leaves its probe behind.
   */
  watch(): AsyncDisposable {
    let timer: Timer;
    const look = () => {
      for (const name of this.#providers.keys()) this.#look(name);
      timer = this.#clock.setTimer(lookEveryMs, look);
    };
    look();
    return {
      [Symbol.asyncDispose]: async () => {
        timer.cancel();
        for (const due of this.#dueLooks.values()) due.cancel();
        this.#closing.abort(new ShuttingDown());
        using deadline = deadlineAfter(endOfLooksMs);
        await abortable(Promise.allSettled(this.#looking), deadline.signal).catch(() => undefined);
      },
    };
  }

  /** Its result is shared while it is not there yet; whoever asks later has it checked anew. */
  #look(name: string): void {
    const provider = this.#providers.get(name);
    if (provider === undefined || this.#checks.get(name)?.pending === true) return;
    void this.#begin(provider, Number.NEGATIVE_INFINITY);
  }

  async #begin(provider: RuntimeProvider, startedMs: number): Promise<ProviderHealthEntry> {
    const beganMs = this.#clock.monotonicMs();
    const check = { startedMs, beganMs, pending: true, result: this.#check(provider) };
    this.#checks.set(provider.name, check);
    try {
      const entry = await check.result;
      this.#found.set(provider.name, entry);
      return entry;
    } finally {
      check.pending = false;
      this.#lookWhenDue(provider.name);
    }
  }

  /** An answer that comes when no check waits for it any more ends a refusal all the same. */
  #ask(provider: RuntimeProvider) {
    const { name } = provider;
    const startedMs = this.#clock.monotonicMs();
    const deadline = deadlineAfter(answerDeadlineMs, this.#closing.signal);
    const ask = async (): Promise<Answer> => {
      const result = await this.#looked(provider.check(deadline));
      return { result, unanswered: deadline.signal.aborted };
    };
    const answer = within(deadline.signal, ask).then((given) => {
      deadline[Symbol.dispose]();
      this.#questions.delete(name);
      if (given.result.healthy) this.#failing.answered(name);
      return given;
    });
    const question = { startedMs, answer };
    this.#questions.set(name, question);
    return question;
  }

  /** Until its end, which may come after its deadline. */
  #looked(check: Promise<ProviderCheck>): Promise<ProviderCheck> {
    this.#looking.add(check);
    const over = () => this.#looking.delete(check);
    check.then(over, over);
    return check;
  }

  #byInventory(provider: RuntimeProvider): ProviderHealthEntry {
    const listed = this.#inventories.get(provider.name);
    const error = listed === undefined ? "it was not looked at yet" : "error" in listed && listed.error;
    const counted =
      listed !== undefined && "count" in listed && provider.capabilities.has("runtime_inventory");
    return {
      name: provider.name,
      healthy: error === false,
      default: provider.name === this.#defaultName,
      latencyMs: 0,
      lastChecked: listed?.at ?? this.#clock.now(),
      ...(error === false ? {} : { error }),
      notes: this.#noted(provider.name),
      capabilities: [...provider.capabilities],
      ...(counted ? { runtimeCount: listed.count } : {}),
    };
  }

  #noted(name: string, ...found: (readonly string[])[]): string[] {
    const atStart = this.#notes.get(name);
    return [...(atStart === undefined ? [] : [atStart]), ...found.flat()];
  }

  /** Bounded by its own deadline and not by one caller's signal: its result is shared. */
  async #check(provider: RuntimeProvider): Promise<ProviderHealthEntry> {
    using deadline = deadlineAfter(checkDeadlineMs, this.#closing.signal);
    const startedMs = this.#clock.monotonicMs();
    const question = this.#questions.get(provider.name) ?? this.#ask(provider);
    const { result, unanswered } = await within(deadline.signal, () => question.answer);
    const failure = result.healthy ? undefined : (result.error ?? "the check failed without a reason");
    const again = this.#failing.checked(provider.name, {
      startedMs,
      error: failure,
      unanswered: unanswered || result.unanswered === true,
    });
    if (again && !this.#closing.signal.aborted) setImmediate(() => this.#look(provider.name));
    const listed = provider.capabilities.has("runtime_inventory")
      ? this.#inventories.get(provider.name)
      : undefined;
    const listingFailed = listed !== undefined && "error" in listed ? listed.error : undefined;
    const healthy = result.healthy && listingFailed === undefined;
    const error = result.error ?? listingFailed ?? "the check failed without a reason";
    const { cannotSpawn } = result;
    return {
      name: provider.name,
      healthy,
      default: provider.name === this.#defaultName,
      latencyMs: Math.round(this.#clock.monotonicMs() - question.startedMs),
      lastChecked: this.#clock.now(),
      ...(healthy ? {} : { error }),
      notes: this.#noted(provider.name, result.notes, cannotSpawn === undefined ? [] : [cannotSpawn]),
      capabilities: [...provider.capabilities],
      ...(cannotSpawn === undefined ? {} : { cannotSpawn }),
      ...(healthy && listed !== undefined && "count" in listed ? { runtimeCount: listed.count } : {}),
    };
  }
}

/** One that hangs or throws counts as unhealthy. */
async function within(signal: AbortSignal, ask: () => Promise<Answer>): Promise<Answer> {
  try {
    return await abortable(ask(), signal);
  } catch (error) {
    const message = error instanceof Error ? error.message : String(error);
    return { result: { healthy: false, error: message, notes: [] }, unanswered: signal.aborted };
  }
}
