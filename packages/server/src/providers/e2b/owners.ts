import type { CallOptions } from "../../ports/index.ts";

/** Users and groups of a sandbox by name: envd tells owners so. Read when first asked, and again for a name that is new. */
export class Owners {
  /** Resolves to the beginning of a file, which is no longer than is believable. */
  readonly #read: (path: string, options: CallOptions) => Promise<Uint8Array>;
  #users = new Map<string, number>();
  #groups = new Map<string, number>();

  constructor(options: { read: (path: string, options: CallOptions) => Promise<Uint8Array> }) {
    this.#read = options.read;
  }

  async ids(
    entries: readonly { owner: string; group: string }[],
    options: CallOptions,
  ): Promise<{ uid: number; gid: number }[]> {
    const isKnown = ({ owner, group }: { owner: string; group: string }) =>
      numberOf(owner, this.#users) !== undefined && numberOf(group, this.#groups) !== undefined;
    if (!entries.every(isKnown)) {
      this.#users = await this.#table("/etc/passwd", options);
      this.#groups = await this.#table("/etc/group", options);
    }
    // One that the sandbox has no name for is nobody's.
    return entries.map(({ owner, group }) => ({
      uid: numberOf(owner, this.#users) ?? nobody,
      gid: numberOf(group, this.#groups) ?? nobody,
    }));
  }

  async #table(path: string, options: CallOptions): Promise<Map<string, number>> {
    const text = Buffer.from(await this.#read(path, options)).toString();
    const table = new Map<string, number>();
    // Of names that are there twice, the last one, as always.
    for (const [, name = "", id] of text.matchAll(/^([^:\n]+):[^:\n]*:(\d+)/gm)) table.set(name, Number(id));
    return table;
  }
}

const nobody = 65_534;

function numberOf(name: string, table: ReadonlyMap<string, number>): number | undefined {
  return /^\d+$/.test(name) ? Number(name) : table.get(name);
}
