import { type Static, Type } from "typebox";
import { Value } from "typebox/value";
import type { Logger } from "../../platform/logger.ts";
import type { RuntimeId, RuntimeProvider, SandboxRow, Store } from "../../ports/index.ts";

/** Where a provider was from a time on, milliseconds of the epoch. */
const Stays = Type.Array(Type.Object({ place: Type.String(), sinceMs: Type.Number() }));
type Stay = Static<typeof Stays>[number];
type Placed = { readonly row: SandboxRow; readonly runtimeId: RuntimeId };

/** So many moves are remembered. */
const mostStays = 16;

/**
 * Knows which sandboxes were made at another backend, or in another account, than the one that a provider of somebody else's
 * machines asks now. That one lists none of them, which says nothing of how they are: they may go on where they were made. The same
 * backend under another address, or with another key, is known by what it lists.
 */
export class ProviderPlaces {
  readonly #store: Pick<Store, "setting" | "changeSetting">;
  readonly #logger: Logger;
  readonly #now: () => Date;
  readonly #stays = new Map<string, Stay[]>();

  constructor(options: {
    store: Pick<Store, "setting" | "changeSetting">;
    logger: Logger;
    now: () => Date;
  }) {
    this.#store = options.store;
    this.#logger = options.logger;
    this.#now = options.now;
  }

  /**
   * @param listed runtimes that the provider has where it is now.
   * @returns where those were made that it does not reach, by their runtimes.
   */
  async away(
    provider: Pick<RuntimeProvider, "name" | "place">,
    sandboxes: readonly Placed[],
    listed: { has(runtimeId: RuntimeId): boolean },
  ): Promise<ReadonlyMap<RuntimeId, string>> {
    const { name, place } = provider;
    const found = new Map<RuntimeId, string>();
    if (place === undefined) return found;
    const stays = this.#stays.get(name) ?? (await this.#settle({ name, place }, sandboxes, listed));
    for (const sandbox of sandboxes) {
      const made = placeOf(sandbox, stays);
      if (made !== place && !listed.has(sandbox.runtimeId)) found.set(sandbox.runtimeId, made);
    }
    return found;
  }

  /** Once for each provider: it is where it is for as long as this process runs. */
  async #settle(
    { name, place }: { name: string; place: string },
    sandboxes: readonly Placed[],
    listed: { has(runtimeId: RuntimeId): boolean },
  ): Promise<Stay[]> {
    const setting = `places.${name}`;
    const known = staysIn(await this.#store.setting(setting));
    const last = known.at(-1);
    let stays: Stay[];
    if (last === undefined) stays = [{ place, sinceMs: 0 }];
    else if (last.place === place) stays = known;
    else {
      const isSame = sandboxes.some(
        (sandbox) => placeOf(sandbox, known) === last.place && listed.has(sandbox.runtimeId),
      );
      stays = isSame
        ? known.map((stay) => (stay.place === last.place ? { ...stay, place } : stay))
        : [...known, { place, sinceMs: this.#behindAll(sandboxes) }].slice(-mostStays);
      if (!isSame && sandboxes.length > 0)
        this.#logger.error(
          { provider: name, made_at: last.place, asked_at: place, sandboxes: sandboxes.length },
          `sandboxes of provider ${name} were made at ${last.place}, and ${place}, which is asked now, has none of them: they are unhealthy until it is named again`,
        );
    }
    this.#stays.set(name, stays);
    if (stays !== known)
      await this.#store
        .changeSetting(setting, JSON.stringify(stays))
        .catch((err: unknown) =>
          this.#logger.warn({ err, provider: name }, "a provider's place was not kept"),
        );
    return stays;
  }

  /** Behind the making of all there are, whatever became of the clock since. */
  #behindAll(sandboxes: readonly Placed[]): number {
    return sandboxes.reduce(
      (latest, { row }) => Math.max(latest, row.createdAt.getTime() + 1),
      this.#now().getTime(),
    );
  }
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
