import { abortable, ignoreOutcome } from "./platform/abortable.ts";
import { deadlineAfter, ShuttingDown } from "./platform/deadline.ts";
import type { Logger } from "./platform/logger.ts";
import { messageOf } from "./platform/message-of.ts";
import type { CallOptions, ProviderCheck, RuntimeProvider } from "./ports/index.ts";
import type { Candidate } from "./provider-candidates.ts";

const checkDeadlineMs = 10_000;
const patienceMs = 5_000;
/** What those may still change who have not answered. */
export type StillOpen = "choice" | "default" | "nothing";

/**
 * For those who have not answered: a default that is well is not to be told as one that refuses spawns, but one that hangs
 * must not keep the service from listening; of the others most answer soon, and a refusal is worth more than none.
 */
const patienceFor: Readonly<Record<StillOpen, number>> = {
  choice: checkDeadlineMs,
  default: 5_000,
  nothing: 1_000,
};
/** For checks that are not waited for any more to undo what they made. */
const endMs = 3_000;

export interface CheckedCandidate {
  candidate: Candidate;
  /** undefined: it was not tried, for the reason in `excluded`. */
  check: ProviderCheck | undefined;
  excluded?: string;
  /** It had not answered in time, or could not be tried: whether it works is not known. */
  unanswered?: boolean;
}

/**
 * Tries every candidate that may be used, all at once, and says whom it waits for. Disposing ends what is under way and
 * waits a while for it.
 */
export class CandidateChecks implements AsyncDisposable {
  readonly #candidates: readonly Candidate[];
  readonly #logger: Logger;
  readonly #ended: AbortSignal;
  readonly #over = new AbortController();
  readonly #underWay = new Set<Promise<unknown>>();

  /** @param options.signal ends them early. */
  constructor(candidates: readonly Candidate[], options: { logger: Logger; signal?: AbortSignal }) {
    this.#candidates = candidates;
    this.#logger = options.logger;
    const { signal } = this.#over;
    this.#ended = options.signal === undefined ? signal : AbortSignal.any([signal, options.signal]);
  }

  /** Waits until each has ended, late ones too: nothing is left of what they tried then. Never throws. */
  all(): Promise<CheckedCandidate[]> {
    return Promise.all(this.#candidates.map((candidate) => this.#check(candidate)));
  }

  /**
   * Waits until each has answered, for 10 s at most, for 5 s once they change only how the default is, and for one when they
   * change nothing. Who has not answered then is asked no more. Never throws.
   * @param stillOpen is given what is known of each, in order.
   */
  async inTime(stillOpen: (known: readonly CheckedCandidate[]) => StillOpen): Promise<CheckedCandidate[]> {
    const known = this.#candidates.map((one) => (isTried(one) ? unanswered(one) : untried(one)));
    const waited = new AbortController();
    const goOn = () => waited.abort();
    const longest = setTimeout(goOn, checkDeadlineMs);
    let open: StillOpen = "choice";
    let lastWord: NodeJS.Timeout | undefined;
    const look = () => {
      const before = open;
      open = stillOpen(known);
      if (open === before || waited.signal.aborted) return;
      clearTimeout(lastWord);
      lastWord = setTimeout(goOn, patienceFor[open]);
    };
    const answers = this.#candidates.map(async (candidate, index) => {
      known[index] = await this.#check(candidate);
      look();
    });
    look();
    await abortable(Promise.all(answers), waited.signal).catch(ignoreOutcome);
    clearTimeout(longest);
    clearTimeout(lastWord);
    const answered = [...known];
    this.#over.abort(new Error("the start has gone on without its answer"));
    return answered;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#over.abort(new ShuttingDown());
    using deadline = deadlineAfter(endMs);
    await abortable(Promise.allSettled(this.#underWay), deadline.signal).catch(ignoreOutcome);
  }

  async #check(candidate: Candidate): Promise<CheckedCandidate> {
    if (!isTried(candidate)) return untried(candidate);
    const { name, provider } = candidate;
    using deadline = deadlineAfter(checkDeadlineMs, this.#ended);
    let waitedMs = 0;
    const waiting = setInterval(() => {
      waitedMs += patienceMs;
      if (this.#over.signal.aborted) return;
      this.#logger.warn(
        { provider: name, waited_ms: waitedMs },
        `waiting for provider ${name}, which tries a sandbox`,
      );
    }, patienceMs);
    const asked = answerOf(provider, deadline);
    this.#underWay.add(asked);
    try {
      const check = await asked;
      const says = check.healthy || !(deadline.signal.aborted || check.untried || check.unanswered);
      return { candidate, check, ...(says ? {} : { unanswered: true }) };
    } finally {
      this.#underWay.delete(asked);
      clearInterval(waiting);
    }
  }
}

function isTried(candidate: Candidate): candidate is Extract<Candidate, { provider: RuntimeProvider }> {
  return "provider" in candidate && candidate.enabled !== false;
}

function untried(candidate: Candidate): CheckedCandidate {
  const switchedOff = `it must be asked for: providers.${candidate.name}.enabled: true`;
  return {
    candidate,
    check: undefined,
    excluded: "missing" in candidate ? candidate.missing : switchedOff,
  };
}

/** A check that fails instead of telling counts as one that found it not to work, and is nothing to the others. */
async function answerOf(provider: RuntimeProvider, options: CallOptions): Promise<ProviderCheck> {
  try {
    return await provider.check(options);
  } catch (error) {
    return { healthy: false, error: messageOf(error), notes: [] };
  }
}

function unanswered(candidate: Candidate): CheckedCandidate {
  const check = { healthy: false, error: "it has not answered yet", notes: [] };
  return { candidate, check, unanswered: true };
}
