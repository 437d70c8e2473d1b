import type { FastifyRequest } from "fastify";
import type { Body, BodyBudget } from "../core/answers/body-budget.ts";
import type { Share } from "../core/answers/shares.ts";
import { shareOf } from "./share.ts";

/**
 * Memory that is held for a request's body, and then for what is made of it: from its first bytes until the request is
 * answered, or as long as a part of it is kept beyond that.
 */
export class BodyMemory {
  readonly #budget: BodyBudget;
  readonly #inputs: BodyBudget;
  readonly #share: Share;
  readonly #body: Body;
  #release: (() => void) | undefined;
  #answered = false;
  /** Gives back what is kept. */
  #kept: ((rest: number) => void) | undefined;

  constructor(options: { budget: BodyBudget; inputs: BodyBudget; request: FastifyRequest }) {
    const { budget, inputs, request } = options;
    this.#budget = budget;
    this.#inputs = inputs;
    this.#share = shareOf(request);
    this.#body = budget.open((release) => {
      this.#release = release;
      const { response } = request;
      if (response === null || response.closed) this.#onAnswered();
      else response.once("close", () => this.#onAnswered());
    }, this.#share);
  }

  get bytes(): number {
    return this.#body.bytes;
  }

  /** @param upTo what it may come to. */
  grow(bytes: number, signal: AbortSignal, upTo?: number): Promise<void> | undefined {
    return this.#body.grow("", bytes, signal, upTo);
  }

  /** How it is ended when smaller shares wait for its memory; undefined: it is not, from now on. */
  endsBy(end: (() => void) | undefined): void {
    this.#body.endsBy(end);
  }

  shrink(bytes: number): void {
    this.#body.shrink(bytes);
  }

  release(): void {
    this.#release?.();
  }

  /**
   * So much of it, that may be little, is held until it is let go of, also when the request was answered. All that is
   * kept leaves a part of the memory to what is only read.
   * @throws Unavailable when there is no room for what was not held yet.
   */
  async keep(bytes: number, signal: AbortSignal): Promise<void> {
    const leave = await this.#hold(this.#inputs, bytes, signal);
    if (!this.#answered && this.#body.bytes >= bytes) {
      this.#kept = (rest) => {
        leave();
        if (this.#answered) this.release();
        else this.shrink(rest);
      };
      return;
    }
    try {
      const release = await this.#hold(this.#budget, bytes, signal);
      this.#kept = () => {
        leave();
        release();
      };
    } catch (error) {
      leave();
      throw error;
    }
  }

  /** @param rest what is held until the request is answered. */
  letGo(rest: number): void {
    const kept = this.#kept;
    this.#kept = undefined;
    kept?.(rest);
  }

  /** @returns what gives it back. */
  async #hold(budget: BodyBudget, bytes: number, signal: AbortSignal): Promise<() => void> {
    let release: (() => void) | undefined;
    const own = budget.open((given) => (release = given), this.#share);
    try {
      await own.hold("", bytes, signal);
    } catch (error) {
      release?.();
      throw error;
    }
    return () => release?.();
  }

  #onAnswered(): void {
    this.#answered = true;
    if (this.#kept === undefined) this.release();
  }
}
