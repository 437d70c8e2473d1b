import { Unavailable } from "../../src/ports/errors.ts";
import type { Store } from "../../src/ports/store.ts";

const parts = ["sandboxes", "idempotency", "quotas", "templates", "keys"] as const;

/** Fails calls of a store on request, as a database does that cannot be written or reached. */
export class StoreFaults {
  #calls = 0;
  #fails: (call: number) => boolean = () => false;
  /** How many calls have failed. */
  failed = 0;

  /** The call of this number from now on fails, and those before and behind it do not. */
  failOnce(number: number): void {
    this.#begin((call) => call === number);
  }

  /** From this number on every call fails, until `heal`. */
  failFrom(number: number): void {
    this.#begin((call) => call >= number);
  }

  heal(): void {
    this.#fails = () => false;
  }

  /** The store with faults; what is iterated and what tells events and audit records is left alone. */
  wrap<T extends Store>(store: T): T {
    const wrapped = new Map<PropertyKey, unknown>(parts.map((part) => [part, this.#wrapPart(store[part])]));
    return new Proxy(store, {
      get: (target, name) => {
        if (wrapped.has(name)) return wrapped.get(name);
        const value: unknown = Reflect.get(target, name, target);
        return typeof value === "function" ? value.bind(target) : value;
      },
    });
  }

  #begin(fails: (call: number) => boolean): void {
    this.#calls = 0;
    this.failed = 0;
    this.#fails = fails;
  }

  #wrapPart<P extends object>(part: P): P {
    return new Proxy(part, {
      get: (target, name) => {
        const value: unknown = Reflect.get(target, name, target);
        if (typeof value !== "function") return value;
        if (name === "liveStates") return value.bind(target);
        return (...args: unknown[]) => {
          this.#calls++;
          if (!this.#fails(this.#calls)) return Reflect.apply(value, target, args);
          this.failed++;
          return Promise.reject(
            new Unavailable("the database cannot be written now; try again", { retryAfterS: 1 }),
          );
        };
      },
    });
  }
}
