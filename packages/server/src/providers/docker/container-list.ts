import { labelPrefix } from "./labels.ts";

/** What is kept of a container in the engine's list. */
export interface ListedContainer {
  Id: string;
  State: string;
  /** Without the slash before it; absent where the engine tells none of its own. */
  Name?: string;
  /** This product's own. */
  Labels: Readonly<Record<string, string>>;
  /** Bytes that the files of the writable layer contain, where it was asked for. */
  SizeRw?: number;
}

/** Longest name or value kept, bytes as they are written in JSON; what is wanted has a tenth of it. */
const longestKept = 1_024;
/** Of all that is kept of a list, names and values, and what a container and a label take beside these: a hundred thousand containers. */
const mostKept = 128 * 1024 * 1024;
const containerCost = 256;
const labelCost = 64;
/** An engine's list has a handful of levels. */
const deepest = 64;

const [quote, backslash, comma, colon] = [0x22, 0x5c, 0x2c, 0x3a];
const opening: ReadonlySet<number> = new Set([0x7b, 0x5b]);
const closing: ReadonlySet<number> = new Set([0x7d, 0x5d]);
const space: ReadonlySet<number> = new Set([0x20, 0x09, 0x0a, 0x0d]);

/**
 * Reads the engine's list of containers piece by piece and keeps only what is wanted: the engine repeats all labels of a
 * container's image, as long as their author likes, and one such must not keep the others from being seen.
 *
 * It skips over the rest without checking it: what is no JSON to begin with gives no list, as does one that is cut.
 */
export class ContainerListReader {
  readonly #containers: ListedContainer[] = [];
  /** Whether each level that is open is an object. */
  readonly #objects: boolean[] = [];
  /** The key before the value that comes, in the objects of the list and in their labels; undefined: none that is wanted. */
  #field: string | undefined;
  #label: string | undefined;
  #isKey = false;
  #token: Token | undefined;
  #open: Partial<ListedContainer> & { Labels: Record<string, string> } = { Labels: {} };
  #begun = false;
  #kept = 0;

  push(piece: Buffer): void {
    let at = 0;
    while (at < piece.length) at = this.#token === undefined ? this.#next(piece, at) : this.#goOn(piece, at);
  }

  /** @throws Error when no whole list has come. */
  end(): ListedContainer[] {
    this.#endToken();
    if (!this.#begun || this.#objects.length > 0) throw new UnreadableList("it ends before its end");
    return this.#containers;
  }

  /** @returns where to go on. */
  #next(piece: Buffer, at: number): number {
    const byte = piece[at] as number;
    if (byte === quote) this.#token = new Token("string", this.#wants(true));
    else if (opening.has(byte)) this.#enter(byte === 0x7b);
    else if (closing.has(byte)) this.#leave();
    else if (byte === comma) this.#isKey = this.#objects.at(-1) === true;
    else if (byte === colon) this.#isKey = false;
    else if (!space.has(byte)) {
      this.#token = new Token("plain", this.#wants(false));
      return at;
    }
    return at + 1;
  }

  #goOn(piece: Buffer, from: number): number {
    const token = this.#token as Token;
    const end = token.kind === "string" ? token.endOfString(piece, from) : endOfPlain(piece, from);
    token.keep(piece, from, end ?? piece.length);
    if (end === undefined) return piece.length;
    this.#endToken();
    return token.kind === "string" ? end + 1 : end;
  }

  /** Whether what begins here is of use. */
  #wants(isString: boolean): boolean {
    const depth = this.#objects.length;
    if (depth === 0) return !isString;
    if (this.#isKey) return depth === 2 || (depth === 3 && this.#field === "Labels");
    if (depth === 2)
      return this.#field === (isString ? "Id" : "SizeRw") || (isString && this.#field === "State");
    return isString && depth === 3 && (this.#label !== undefined || this.#inNames);
  }

  get #inNames(): boolean {
    return this.#field === "Names" && this.#objects[2] === false;
  }

  #endToken(): void {
    const token = this.#token;
    if (token === undefined) return;
    this.#token = undefined;
    const value = token.value();
    const depth = this.#objects.length;
    // Some engines write an empty list so.
    if (depth === 0 && value !== "null") throw new UnreadableList("it is no list");
    if (depth === 0) this.#begun = true;
    if (depth === 1) throw new UnreadableList("something in it is no container");
    if (this.#isKey) {
      if (depth === 2) this.#field = value;
      else if (depth === 3 && this.#field === "Labels")
        this.#label = value?.startsWith(labelPrefix) ? value : undefined;
    } else if (value !== undefined) this.#take(depth, value);
  }

  #take(depth: number, value: string): void {
    if (depth === 3 && this.#label !== undefined) {
      this.#keep(labelCost + this.#label.length + value.length);
      this.#open.Labels[this.#label] = value;
    } else if (depth === 3 && this.#inNames) this.#takeName(value);
    else if (depth !== 2) return;
    else if (this.#field === "Id") this.#open.Id = value;
    else if (this.#field === "State") this.#open.State = value;
    else if (this.#field === "SizeRw" && /^\d+$/.test(value)) this.#open.SizeRw = Number(value);
  }

  /** Others are those under which further containers know it, below their own. */
  #takeName(value: string): void {
    const name = value.replace(/^\//, "");
    if (this.#open.Name !== undefined || name.includes("/")) return;
    this.#keep(name.length);
    this.#open.Name = name;
  }

  #enter(isObject: boolean): void {
    const depth = this.#objects.push(isObject);
    if (depth > deepest) throw new UnreadableList("it has too many levels");
    if (depth === 1 && isObject) throw new UnreadableList("it is no list");
    this.#begun = true;
    this.#isKey = isObject;
    if (depth === 2) {
      this.#field = undefined;
      this.#open = { Labels: {} };
    }
    if (depth === 3) this.#label = undefined;
  }

  #leave(): void {
    if (this.#objects.pop() === undefined) throw new UnreadableList("it is no list");
    this.#isKey = false;
    this.#label = undefined;
    if (this.#objects.length !== 1) return;
    const { Id, State } = this.#open;
    if (Id === undefined || State === undefined)
      throw new UnreadableList("a container has no Id or no State");
    this.#keep(containerCost + Id.length + State.length);
    this.#containers.push({ ...this.#open, Id, State });
  }

  #keep(bytes: number): void {
    this.#kept += bytes;
    if (this.#kept > mostKept)
      throw new UnreadableList(`what is to be kept of it takes more than ${mostKept} bytes`);
  }
}

/** The engine's answer is not what it answers. */
class UnreadableList extends Error {
  constructor(why: string) {
    super(`the Docker Engine's list of containers cannot be read: ${why}`);
  }
}

/** A string, or a number or another plain value, that may come in many pieces. */
class Token {
  readonly kind: "string" | "plain";
  #pieces: Buffer[] | undefined;
  #length = 0;
  #escaped = false;

  constructor(kind: "string" | "plain", isWanted: boolean) {
    this.kind = kind;
    this.#pieces = isWanted ? [] : undefined;
  }

  /** @returns where its closing quote is; undefined: further on. */
  endOfString(piece: Buffer, from: number): number | undefined {
    let at = from;
    if (this.#escaped) {
      this.#escaped = false;
      at += 1;
    }
    // Most of what is skipped is between two quotes.
    let end = piece.indexOf(quote, at);
    let escapeAt = piece.indexOf(backslash, at);
    while (escapeAt !== -1 && (end === -1 || escapeAt < end)) {
      at = escapeAt + 2;
      if (at > piece.length) {
        this.#escaped = true;
        return undefined;
      }
      if (end !== -1 && end < at) end = piece.indexOf(quote, at);
      escapeAt = piece.indexOf(backslash, at);
    }
    return end === -1 ? undefined : end;
  }

  keep(piece: Buffer, from: number, to: number): void {
    if (this.#pieces === undefined) return;
    this.#length += to - from;
    // Longer than anything that is wanted.
    if (this.#length > longestKept) this.#pieces = undefined;
    else this.#pieces.push(Buffer.from(piece.subarray(from, to)));
  }

  /** @returns undefined for what nobody wants. */
  value(): string | undefined {
    if (this.#pieces === undefined) return undefined;
    const text = Buffer.concat(this.#pieces).toString("utf8");
    return this.kind === "plain" ? text : String(JSON.parse(`"${text}"`));
  }
}

/** @returns where the first byte is that is none of its; undefined: further on. */
function endOfPlain(piece: Buffer, from: number): number | undefined {
  for (let at = from; at < piece.length; at++) {
    const byte = piece[at] as number;
    if (byte === comma || byte === colon || closing.has(byte) || space.has(byte)) return at;
  }
  return undefined;
}
