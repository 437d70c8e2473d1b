import type { Clock, EmittedEvent, Timer } from "../../ports/index.ts";

const everyMs = 1_000;

/**
 * Refusals of one kind, of one owner and sandbox, are told once a second: the first at once, those that follow together
 * with how many they were. Whoever asks in a loop at its limit would otherwise push what others did out of the history.
 */
export class LimitReports implements Disposable {
  readonly #clock: Pick<Clock, "setTimer">;
  readonly #emit: (event: EmittedEvent) => void;
  /** The kinds that were told lately, with what came since. */
  #kinds = new Map<string, { count: number; last: EmittedEvent }>();
  #timer: Timer | undefined;

  constructor(options: { clock: Pick<Clock, "setTimer">; emit: (event: EmittedEvent) => void }) {
    this.#clock = options.clock;
    this.#emit = options.emit;
  }

  report(event: EmittedEvent): void {
    const { ownerId, sandboxId, data } = event;
    const kind = JSON.stringify([ownerId, sandboxId, data?.operation, data?.reason]);
    const known = this.#kinds.get(kind);
    if (known !== undefined) {
      known.count++;
      known.last = event;
      return;
    }
    this.#kinds.set(kind, { count: 0, last: event });
    this.#emit(event);
    this.#timer ??= this.#clock.setTimer(everyMs, () => this.#tell());
  }

  /** Tells what was counted. */
  [Symbol.dispose](): void {
    this.#tell();
    this.#timer?.cancel();
    this.#timer = undefined;
  }

  #tell(): void {
    this.#timer?.cancel();
    const before = this.#kinds;
    this.#kinds = new Map();
    for (const [kind, { count, last }] of before) {
      if (count === 0) continue;
      this.#kinds.set(kind, { count: 0, last });
      this.#emit(count === 1 ? last : { ...last, data: { ...last.data, count } });
    }
    this.#timer = this.#kinds.size === 0 ? undefined : this.#clock.setTimer(everyMs, () => this.#tell());
  }
}
