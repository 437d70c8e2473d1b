import type { Duplex } from "node:stream";

/** How long an answer may take before it counts as one that waits for another connection of the port to end. */
const lateMs = 100;
/** For how long a program that was found to serve few counts as one. */
const fewMs = 60_000;
/** An answer that takes longer still once those that were kept are closed was not waiting for them. */
const soonMs = 50;

/** A connection to a port from before it is made until its first answer, or until there will be none. */
export interface FirstAnswer extends Disposable {
  /** @param keeps whether it may be used again. */
  made(connection: Duplex, keeps: boolean): void;
  /** The program has answered it. */
  came(): void;
}

interface Port {
  /** Connections in the order in which they were made. `closing`: answered, and not kept. */
  readonly open: Map<Duplex, "used" | "closing">;
  /** How many connections its program is taken to serve beside each other. */
  served: number;
  /** Runs while that is what it was seen to serve, and not any number. */
  few: NodeJS.Timeout | undefined;
  /** Connections that wait for their first answer, those that are being made included, and those of them that are late. */
  waiting: number;
  making: number;
  late: number;
}

/**
 * How many connections the program at each port serves at once. Most serve any number. Some serve one, or as many as they have
 * threads, and come to the next when one of those ends, however idle: for them connections that are kept have to make way.
 * Those are told by an answer that is late while connections are kept, and comes once they are closed.
 */
export class PortConcurrency {
  readonly #ports = new Map<string, Port>();
  readonly #idleOf: (portKey: string) => readonly Duplex[];

  /** @param idleOf connections of a port that are kept and not used, those unused for longest first. */
  constructor(idleOf: (portKey: string) => readonly Duplex[]) {
    this.#idleOf = idleOf;
  }

  /** Whether one that is free now may be kept: nobody waits for it to end. */
  mayKeep(portKey: string): boolean {
    const port = this.#ports.get(portKey);
    if (port === undefined || port.waiting === 0) return true;
    return port.late === 0 && countOpen(port) + port.making <= port.served;
  }

  /** To be called before a connection is made. Those that are kept make way, unless its program serves more. */
  begin(portKey: string): FirstAnswer {
    const port = this.#ports.get(portKey) ?? newPort();
    this.#ports.set(portKey, port);
    port.waiting += 1;
    port.making += 1;
    this.#closeIdle(portKey, countOpen(port) + port.making - port.served);
    let isLate = false;
    let closedAtMs: number | undefined;
    const timer = setTimeout(() => {
      isLate = true;
      port.late += 1;
      if (this.#closeIdle(portKey, Number.POSITIVE_INFINITY) === 0) return;
      closedAtMs = performance.now();
    }, lateMs).unref();
    let own: { connection: Duplex; keeps: boolean } | undefined;
    let isMaking = true;
    let isWaiting = true;
    const made = () => {
      if (isMaking) port.making -= 1;
      isMaking = false;
    };
    const end = () => {
      made();
      if (!isWaiting) return;
      isWaiting = false;
      clearTimeout(timer);
      port.waiting -= 1;
      if (isLate) port.late -= 1;
      this.#forgetUnused(portKey, port);
    };
    return {
      made: (connection, keeps) => {
        made();
        own = { connection, keeps };
        port.open.set(connection, "used");
        connection.once("close", () => {
          port.open.delete(connection);
          this.#forgetUnused(portKey, port);
        });
      },
      came: () => {
        if (isWaiting && closedAtMs !== undefined && performance.now() - closedAtMs <= soonMs)
          this.#foundFew(portKey, port);
        if (isWaiting && own !== undefined) {
          seeServed(port, own.connection);
          if (!own.keeps && port.open.has(own.connection)) port.open.set(own.connection, "closing");
        }
        end();
      },
      [Symbol.dispose]: end,
    };
  }

  /** @returns how many it closed. */
  #closeIdle(portKey: string, most: number): number {
    const closing = this.#idleOf(portKey).slice(0, Math.max(0, most));
    for (const connection of closing) connection.destroy();
    return closing.length;
  }

  #foundFew(portKey: string, port: Port): void {
    port.served = 1;
    clearTimeout(port.few);
    port.few = setTimeout(() => {
      port.few = undefined;
      port.served = Number.POSITIVE_INFINITY;
      this.#forgetUnused(portKey, port);
    }, fewMs).unref();
  }

  #forgetUnused(portKey: string, port: Port): void {
    const unused = port.open.size === 0 && port.waiting === 0 && port.few === undefined;
    // It may have been forgotten before, and begun anew.
    if (unused && this.#ports.get(portKey) === port) this.#ports.delete(portKey);
  }
}

function newPort(): Port {
  return {
    open: new Map(),
    served: Number.POSITIVE_INFINITY,
    few: undefined,
    waiting: 0,
    making: 0,
    late: 0,
  };
}

/** One that was answered while older ones are used is served beside those: a program that serves few takes them in order. */
function seeServed(port: Port, answered: Duplex): void {
  let atOnce = 1;
  for (const [connection, state] of port.open) {
    if (connection === answered) break;
    if (state === "used" && isOpen(connection)) atOnce += 1;
  }
  port.served = Math.max(port.served, atOnce);
}

function countOpen({ open }: Port): number {
  let count = 0;
  for (const connection of open.keys()) if (isOpen(connection)) count += 1;
  return count;
}

/** The program may have come to the next once either side has ended one. */
function isOpen({ destroyed, readableEnded, writableEnded }: Duplex): boolean {
  return !destroyed && !readableEnded && !writableEnded;
}
