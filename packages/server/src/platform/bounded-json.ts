export interface JsonBounds {
  /** Objects and lists within one another. */
  maxDepth: number;
  /** Values, roughly: what commas, colons and brackets separate. */
  maxParts: number;
  /** Names of fields, of which each costs several times what another value does. Absent: as many as there may be values. */
  maxNames?: number;
}

const quote = 0x22;
const comma = 0x2c;
const colon = 0x3a;
const openList = 0x5b;
const backslash = 0x5c;
const closeList = 0x5d;
const openObject = 0x7b;
const closeObject = 0x7d;

/**
 * Looks at JSON before it is parsed, as its bytes come: parsing, and walking through what was parsed, costs by the number
 * of values and by their nesting, of which some megabytes can hold millions. Each byte is looked at once and nothing is
 * made of it, so that the look costs a fraction of parsing, whatever the bytes are. In UTF-8 no byte of a longer
 * character is one of those looked for.
 */
export class JsonLook {
  readonly #bounds: JsonBounds;
  #depth = 0;
  #parts = 0;
  #names = 0;
  #inString = false;
  /** The last piece ended behind a backslash. */
  #escaped = false;

  constructor(bounds: JsonBounds) {
    this.#bounds = bounds;
  }

  /** @returns what is too much of it so far, undefined when nothing is. Says nothing about whether it is JSON. */
  add(piece: Uint8Array): string | undefined {
    const { maxDepth, maxParts, maxNames = maxParts } = this.#bounds;
    const { length } = piece;
    let at = this.#escaped ? 1 : 0;
    if (length > 0) this.#escaped = false;
    while (at < length) {
      if (this.#inString) {
        at = this.#endOfString(piece, at);
        continue;
      }
      switch (piece[at++]) {
        case quote:
          this.#inString = true;
          break;
        case openList:
        case openObject:
          if (++this.#depth > maxDepth) return `it is nested more than ${maxDepth} deep`;
          if (++this.#parts > maxParts) return `it holds more than ${maxParts} values`;
          break;
        case colon:
          if (++this.#names > maxNames) return `it holds more than ${maxNames} names of fields`;
          if (++this.#parts > maxParts) return `it holds more than ${maxParts} values`;
          break;
        case comma:
          if (++this.#parts > maxParts) return `it holds more than ${maxParts} values`;
          break;
        case closeList:
        case closeObject:
          this.#depth--;
          break;
      }
    }
    return undefined;
  }

  /** @returns where to go on: behind the closing quote, or at the end of the piece. */
  #endOfString(piece: Uint8Array, from: number): number {
    const { length } = piece;
    let at = from;
    while (at < length) {
      const byte = piece[at++];
      if (byte === quote) {
        this.#inString = false;
        return at;
      }
      if (byte === backslash) at++;
    }
    this.#escaped = at > length;
    return at;
  }
}

/** @returns what is too much of a JSON text in UTF-8, undefined when nothing is. */
export function beyondBounds(text: Uint8Array, bounds: JsonBounds): string | undefined {
  return new JsonLook(bounds).add(text);
}
