import { ByteBlocks } from "../../platform/byte-blocks.ts";
import { snakeCase, Unreadable } from "./tolerant-reader.ts";

/** Objects and lists within one another, beside the things in the list, which have a bound of their own. */
const deepest = 64;

const quote = 0x22;
const comma = 0x2c;
const colon = 0x3a;
const openList = 0x5b;
const backslash = 0x5c;
const closeList = 0x5d;
const openObject = 0x7b;
const closeObject = 0x7d;

/**
 * Finds in a JSON object, as its bytes come, the things that stand in one list of it: an answer may be long, and is neither
 * held nor parsed whole, so that others have their turns in between. What else stands in it is passed over unread.
 */
export class ListReader {
  readonly #field: string;
  readonly #thingAtMost: number;
  /** Levels that are open; the list is the second. */
  #depth = 0;
  #inString = false;
  #escaped = false;
  /** Whether the second level is the list. */
  #inList = false;
  #found = false;
  #ended = false;
  /** Bytes of what is being read, of the pieces before this one: a thing in the list, or a text that may name it. */
  readonly #kept = new ByteBlocks();
  /** The last text of the first level. */
  #text: string | undefined;
  #name: string | undefined;

  /** @param field the list's, in snake case. @param thingAtMost bytes of one thing in it, and of a name beside it. */
  constructor(field: string, thingAtMost: number) {
    this.#field = field;
    this.#thingAtMost = thingAtMost;
  }

  /** @returns each thing whose end is in this piece, as JSON. @throws Unreadable */
  *push(piece: Uint8Array): Generator<Uint8Array> {
    // Where what is kept goes on.
    let from = 0;
    for (let at = 0; at < piece.length; at += 1) {
      const byte = piece[at];
      if (this.#inString) {
        if (this.#escaped) this.#escaped = false;
        else if (byte === backslash) this.#escaped = true;
        else if (byte === quote) {
          this.#inString = false;
          if (this.#depth === 1) {
            this.#text = textOf(this.#take(piece.subarray(from, at + 1)));
            from = at + 1;
          }
        }
        continue;
      }
      const isThing = this.#inList && this.#depth === 2;
      switch (byte) {
        case quote:
          this.#inString = true;
          if (this.#depth === 1) {
            this.#kept.clear();
            from = at;
          }
          break;
        case colon:
          if (this.#depth === 1) this.#name = this.#text;
          break;
        case openObject:
        case openList:
          if (this.#ended || (this.#depth === 0 && byte === openList))
            throw new Unreadable("at its top it must be object");
          if (this.#depth === 1) {
            this.#inList = byte === openList && snakeCase(this.#name ?? "") === this.#field;
            this.#found ||= this.#inList;
            this.#kept.clear();
            from = at + 1;
          }
          this.#depth += 1;
          if (this.#depth > deepest) throw new Unreadable(`it is nested more than ${deepest} deep`);
          break;
        case closeObject:
        case closeList: {
          if (isThing) {
            const thing = this.#take(piece.subarray(from, at));
            if (!isBlank(thing)) yield thing;
          }
          this.#depth -= 1;
          if (this.#depth < 0) throw new Unreadable("it is no JSON");
          if (this.#depth <= 1) this.#inList = false;
          this.#ended ||= this.#depth === 0;
          this.#name = undefined;
          break;
        }
        case comma:
          if (isThing) {
            yield this.#take(piece.subarray(from, at));
            from = at + 1;
          }
          break;
      }
    }
    if ((this.#inList && this.#depth >= 2) || (this.#inString && this.#depth === 1))
      this.#keep(piece.subarray(from));
  }

  /** @throws Unreadable where the answer is not whole, or has no such list. */
  end(): void {
    if (!this.#ended) throw new Unreadable("it is no JSON");
    if (!this.#found) throw new Unreadable(`at its top it must have required properties ${this.#field}`);
  }

  #keep(part: Uint8Array): void {
    this.#kept.add(part);
    if (this.#kept.bytes > this.#thingAtMost)
      throw new Unreadable(`something in it is longer than ${this.#thingAtMost} bytes`);
  }

  #take(part: Uint8Array): Uint8Array {
    this.#keep(part);
    return this.#kept.take();
  }
}

/** @returns undefined for what is no text. */
function textOf(json: Uint8Array): string | undefined {
  try {
    return String(JSON.parse(Buffer.from(json).toString()));
  } catch {
    return undefined;
  }
}

const isBlank = (json: Uint8Array) => Buffer.from(json).toString().trim() === "";
