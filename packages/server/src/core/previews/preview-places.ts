import { Unavailable } from "../../ports/errors.ts";

/** Whose port it is. */
export interface PlaceHolder {
  readonly sandboxId: string;
  /** Empty: nobody's. */
  readonly ownerId: string;
}

/** Parts of all places that the sandboxes of an owner have at most, and those of nobody together, so that others find one. */
const ownerPart = 1 / 4;
const nobodysPart = 3 / 4;

/**
 * Bounds connections to ports of sandboxes: in all, of one owner and of one sandbox. Nobody waits: who finds no place is
 * told to come again. Each is a descriptor or two of this process, and a place at the sandbox's agent, of which commands
 * and files need some.
 */
export class PreviewPlaces {
  readonly #most: number;
  readonly #mostOfOwner: number;
  readonly #mostOfNobody: number;
  readonly #mostOfSandbox: number;
  readonly #bySandbox = new Map<string, number>();
  readonly #byOwner = new Map<string, number>();
  #taken = 0;

  constructor(options: { most: number; mostOfSandbox: number }) {
    this.#most = options.most;
    this.#mostOfOwner = Math.max(Math.floor(options.most * ownerPart), 1);
    this.#mostOfNobody = Math.max(Math.floor(options.most * nobodysPart), 1);
    this.#mostOfSandbox = options.mostOfSandbox;
  }

  get taken(): number {
    return this.#taken;
  }

  /** @returns the place, to be disposed once. @throws Unavailable where there is none. */
  take({ sandboxId, ownerId }: PlaceHolder): Disposable {
    if (this.#taken >= this.#most)
      throw busy(`${this.#most} connections to ports of sandboxes are open (preview.max_connections)`);
    if ((this.#bySandbox.get(sandboxId) ?? 0) >= this.#mostOfSandbox)
      throw busy(
        `sandbox "${sandboxId}" has ${this.#mostOfSandbox} connections to its ports (preview.max_connections_per_sandbox)`,
      );
    const ofOwner = this.#byOwner.get(ownerId) ?? 0;
    if (ownerId === "" && ofOwner >= this.#mostOfNobody)
      throw busy(
        `the sandboxes without an owner have ${this.#mostOfNobody} connections to their ports (three quarters of preview.max_connections)`,
      );
    if (ownerId !== "" && ofOwner >= this.#mostOfOwner)
      throw busy(
        `the sandboxes of this owner have ${this.#mostOfOwner} connections to their ports (a quarter of preview.max_connections)`,
      );
    this.#count(sandboxId, ownerId, 1);
    let held = true;
    return {
      [Symbol.dispose]: () => {
        if (held) this.#count(sandboxId, ownerId, -1);
        held = false;
      },
    };
  }

  #count(sandboxId: string, ownerId: string, change: 1 | -1): void {
    this.#taken += change;
    add(this.#bySandbox, sandboxId, change);
    add(this.#byOwner, ownerId, change);
  }
}

function add(counts: Map<string, number>, name: string, change: number): void {
  const count = (counts.get(name) ?? 0) + change;
  if (count > 0) counts.set(name, count);
  else counts.delete(name);
}

function busy(why: string): Unavailable {
  return new Unavailable(`${why}; close some, or try again`, { retryAfterS: 1 });
}
