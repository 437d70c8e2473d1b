import { DatabaseSync, type SQLInputValue, type StatementSync } from "node:sqlite";
import { Unavailable } from "../../ports/errors.ts";
import { isDamage } from "./disk-errors.ts";

/** Whoever reads this may be a stranger: the path stands in the log. */
export const damagedToAll =
  "the database is damaged; the log names the file and the way out, docs/operations/failures.md tells more";
const retryAfterS = 60;

type Parameters = SQLInputValue[];

/**
 * A connection that remembers when SQLite found its file damaged, whichever statement met that. It stays so: what one page
 * has lost no later statement brings back.
 */
export class WatchedDatabase extends DatabaseSync {
  #damage: unknown;

  /** What SQLite said first of it; undefined while nothing was found. */
  get damage(): unknown {
    return this.#damage;
  }

  /** @throws Unavailable once damage was found. */
  refuseDamaged(): void {
    if (this.#damage !== undefined) throw damaged(this.#damage);
  }

  /** What another connection to the same file was told. */
  noteDamage(error: unknown): void {
    this.#noted(error);
  }

  override exec(sql: string): void {
    try {
      super.exec(sql);
    } catch (error) {
      throw this.#noted(error);
    }
  }

  override prepare(sql: string): StatementSync {
    let plain: StatementSync;
    try {
      plain = super.prepare(sql);
    } catch (error) {
      throw this.#noted(error);
    }
    const watched =
      <T>(step: (...parameters: Parameters) => T) =>
      (...parameters: Parameters): T => {
        try {
          return step(...parameters);
        } catch (error) {
          throw this.#noted(error);
        }
      };
    const iterate = plain.iterate.bind(plain);
    return Object.assign(plain, {
      run: watched(plain.run.bind(plain)),
      get: watched(plain.get.bind(plain)),
      all: watched(plain.all.bind(plain)),
      iterate: (...parameters: Parameters) => this.#watchedRows(() => iterate(...parameters)),
    });
  }

  *#watchedRows<T>(rows: () => Iterable<T>): Generator<T, undefined> {
    try {
      yield* rows();
    } catch (error) {
      throw this.#noted(error);
    }
  }

  #noted(error: unknown): unknown {
    if (!isDamage(error)) return error;
    this.#damage ??= error;
    return error instanceof Unavailable ? error : damaged(error);
  }
}

function damaged(cause: unknown): Unavailable {
  return new Unavailable(damagedToAll, { cause, retryAfterS });
}
