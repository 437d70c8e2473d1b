import { type Static, Type } from "typebox";
import { Value } from "typebox/value";
import type { Logger } from "../../platform/logger.ts";
import {
  type RuntimeId,
  type RuntimeProvider,
  type SandboxRow,
  type Store,
  Unavailable,
} from "../../ports/index.ts";

/** Where a provider was from a time on, milliseconds of the epoch. */
const Stays = Type.Array(
  Type.Object({
    place: Type.String(),
    sinceMs: Type.Number(),
    /** It has not said yet what it has, which may show that it is the one before under another name. */
    unheard: Type.Optional(Type.Boolean()),
  }),
);
type Stay = Static<typeof Stays>[number];
type Placed = { readonly row: SandboxRow; readonly runtimeId: RuntimeId };
type Place = Pick<RuntimeProvider, "name" | "place">;

interface Known {
  stays: readonly Stay[];
  /** Runtimes that were there before this process made any; undefined once the provider has said what it has. */
  before: ReadonlySet<RuntimeId> | undefined;
  /** Whether the next process finds `stays`. */
  isKept: boolean;
}

/** So many moves are remembered. */
const mostStays = 16;

/**
 * Knows which sandboxes were made at another backend, or in another account, than the one that a provider of somebody else's
 * machines asks now. That one lists none of them, which says nothing of how they are: they may go on where they were made. The same
 * backend under another address, or with another key, is known by what it lists of them; what is made there before it has listed
 * anything tells nothing of that.
 */
export class ProviderPlaces {
  readonly #store: Pick<Store, "setting" | "changeSetting">;
  readonly #logger: Logger;
  readonly #startedAt: number;
  readonly #known = new Map<string, Known>();

  constructor(options: {
    store: Pick<Store, "setting" | "changeSetting">;
    logger: Logger;
    now: () => Date;
  }) {
    this.#store = options.store;
    this.#logger = options.logger;
    this.#startedAt = options.now().getTime();
  }

  /**
   * To be called before anything new is made where the provider is now.
   * @param sandboxes all that are there.
   * @returns where those were made that it may not reach, by their runtimes; undefined once it has said what it has.
   */
  async doubtful(
    provider: Place,
    sandboxes: readonly Placed[],
  ): Promise<ReadonlyMap<RuntimeId, string> | undefined> {
    const { name, place } = provider;
    if (place === undefined) return undefined;
    const isKnown = this.#known.has(name);
    const known = this.#known.get(name) ?? (await this.#arrive({ name, place }, sandboxes));
    const at = { place, stays: known.stays, listed: new Set<RuntimeId>() };
    const away = mayRunAway(sandboxes, at);
    // Owners are told that the log has it. At each start, and at once: what is asked may never say what it has.
    if (!isKnown && away.size > 0)
      this.#logger.warn(
        { provider: name, made_at: placesOf(away), asked_at: place, sandboxes: away.size },
        `sandboxes of provider ${name} were made at ${placesOf(away)}, and ${place} is asked now: those that it does not have are unhealthy until the former is named again`,
      );
    return known.before === undefined ? undefined : elsewhere(sandboxes, at);
  }

  /**
   * To be called once what `doubtful` said is told, and before anything new is made: whoever ends or reaches for a sandbox meanwhile
   * must not ask the new place for it.
   * @throws Unavailable while it cannot be written down that it is at another place: the next process would take what is made
   *  there for the former's.
   */
  async writtenDown({ name }: Place): Promise<void> {
    const known = this.#known.get(name);
    if (known === undefined || known.isKept) return;
    await this.#keep(name, known);
    if (!known.isKept && known.before !== undefined && known.stays.length > 1)
      throw new Unavailable(`nothing is made by provider ${name} before it is written down where it is`);
  }

  /**
   * @param listed runtimes that the provider has where it is now.
   * @returns where those were made that it does not reach, by their runtimes.
   */
  async away(
    provider: Place,
    sandboxes: readonly Placed[],
    listed: { has(runtimeId: RuntimeId): boolean },
  ): Promise<ReadonlyMap<RuntimeId, string>> {
    const { name, place } = provider;
    if (place === undefined) return new Map();
    const known = this.#known.get(name) ?? (await this.#arrive({ name, place }, sandboxes));
    if (known.before !== undefined) this.#settle({ name, place }, known, { sandboxes, listed });
    if (!known.isKept) await this.#keep(name, known);
    return elsewhere(sandboxes, { place, stays: known.stays, listed });
  }

  /** Once for each provider: it is where it is for as long as this process runs. */
  async #arrive(
    { name, place }: { name: string; place: string },
    sandboxes: readonly Placed[],
  ): Promise<Known> {
    const read = staysIn(await this.#store.setting(settingOf(name)));
    const last = read.at(-1);
    const here = { place, sinceMs: this.#behindAll(sandboxes), unheard: true };
    const stays =
      last === undefined
        ? [{ place, sinceMs: 0 }]
        : last.place === place
          ? read
          : [...read, here].slice(-mostStays);
    const before = new Set(sandboxes.map(({ runtimeId }) => runtimeId));
    const known = { stays, before, isKept: stays === read };
    this.#known.set(name, known);
    return known;
  }

  /** The first time that it says what it has. */
  #settle(
    { name, place }: { name: string; place: string },
    known: Known,
    { sandboxes, listed }: { sandboxes: readonly Placed[]; listed: { has(runtimeId: RuntimeId): boolean } },
  ): void {
    const old = sandboxes.filter(({ runtimeId }) => known.before?.has(runtimeId) === true);
    known.before = undefined;
    if (known.stays.at(-1)?.unheard !== true) return;
    const former = known.stays;
    const same = new Set(
      old.filter(({ runtimeId }) => listed.has(runtimeId)).map((each) => placeOf(each, former)),
    );
    known.stays = former.map(({ unheard: _, ...stay }) => (same.has(stay.place) ? { ...stay, place } : stay));
    known.isKept = false;
    const away = mayRunAway(old, { place, stays: known.stays, listed });
    if (away.size > 0)
      this.#logger.error(
        { provider: name, made_at: placesOf(away), asked_at: place, sandboxes: away.size },
        `sandboxes of provider ${name} were made at ${placesOf(away)}, and ${place}, which is asked now, has none of them: they are unhealthy until it is named again`,
      );
  }

  /** What could not be written is tried again by the next pass. */
  async #keep(name: string, known: Known): Promise<void> {
    try {
      await this.#store.changeSetting(settingOf(name), JSON.stringify(known.stays));
      known.isKept = true;
    } catch (err) {
      this.#logger.warn({ err, provider: name }, "a provider's place was not kept");
    }
  }

  /** Behind the making of all there are, whatever became of the clock since, and before that of what this process makes. */
  #behindAll(sandboxes: readonly Placed[]): number {
    return sandboxes.reduce(
      (latest, { row }) => Math.max(latest, row.createdAt.getTime() + 1),
      this.#startedAt,
    );
  }
}

const settingOf = (name: string) => `places.${name}`;

function elsewhere(
  sandboxes: readonly Placed[],
  at: { place: string; stays: readonly Stay[]; listed: { has(runtimeId: RuntimeId): boolean } },
): Map<RuntimeId, string> {
  const found = new Map<RuntimeId, string>();
  for (const sandbox of sandboxes) {
    const made = placeOf(sandbox, at.stays);
    if (made !== at.place && !at.listed.has(sandbox.runtimeId)) found.set(sandbox.runtimeId, made);
  }
  return found;
}

/** Of those alone that may run still. */
function mayRunAway(
  sandboxes: readonly Placed[],
  at: Parameters<typeof elsewhere>[1],
): ReadonlyMap<RuntimeId, string> {
  return elsewhere(
    sandboxes.filter(({ row }) => row.state !== "error"),
    at,
  );
}

function placesOf(away: ReadonlyMap<RuntimeId, string>): string {
  return [...new Set(away.values())].join(", ");
}

function placeOf({ row }: Placed, stays: readonly Stay[]): string {
  const made = row.createdAt.getTime();
  const before = stays.filter(({ sinceMs }) => sinceMs <= made);
  return (before.at(-1) ?? stays[0])?.place ?? "";
}

/** What cannot be read says nothing. */
function staysIn(text: string | undefined): Stay[] {
  if (text === undefined) return [];
  try {
    const read: unknown = JSON.parse(text);
    return Value.Check(Stays, read) ? read : [];
  } catch {
    return [];
  }
}
