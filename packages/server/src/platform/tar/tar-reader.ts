import { BadRequest } from "../../ports/errors.ts";
import { ByteReader } from "./byte-reader.ts";

export type TarEntryType = "file" | "dir" | "symlink" | "hardlink" | "special";

/** The header of one member. */
export interface TarHeader {
  name: string;
  type: TarEntryType;
  /** Permission bits, as the archive has them. */
  mode: number;
  uid: number;
  gid: number;
  size: number;
  /** Seconds since 1970. */
  mtime: number;
  linkTarget: string;
}

const block = 512;
const longestHeader = 1_048_576;
/** Longer than any key that is known. */
const longestKey = 64;
const sparseMark = "GNU.sparse";
const types: Readonly<Record<string, TarEntryType>> = {
  "0": "file",
  "\0": "file",
  "7": "file",
  "1": "hardlink",
  "2": "symlink",
  "5": "dir",
  "3": "special",
  "4": "special",
  "6": "special",
};

/** What a pax header may override; the rest, extended attributes above all, is passed over. */
const paxKeys: ReadonlySet<string> = new Set(["path", "linkpath", "uid", "gid", "size", "mtime"]);

/**
 * Reads a tar: ustar, with pax or GNU headers for what does not fit. Each member's contents must be taken through `body`
 * before the next is asked for; what is left of them is skipped.
 * @throws BadRequest for what is no tar, is cut short, or uses sparse members.
 */
export async function* readTar(
  source: AsyncIterable<Uint8Array>,
): AsyncGenerator<{ header: TarHeader; body: () => AsyncGenerator<Buffer> }> {
  const reader = new ByteReader(source);
  let overrides = new Map<string, string>();
  for (;;) {
    const head = await reader.read(block);
    if (head.length === 0 || (head.length === block && isZero(head))) break;
    if (head.length < block || octal(head, 148, 8) !== checksum(head))
      throw new BadRequest("this is not a tar archive");
    const flag = String.fromCharCode(head[156] ?? 0);
    const headerSize = octal(head, 124, 12);
    if (flag === "x" || flag === "g" || flag === "L" || flag === "K") {
      const data = await extension(reader, headerSize);
      if (flag === "x") takePaxRecords(data, overrides);
      else if (flag === "L") overrides.set("path", text(data, 0, data.length));
      else if (flag === "K") overrides.set("linkpath", text(data, 0, data.length));
      continue;
    }
    const header = headerOf(head, flag, overrides);
    overrides = new Map();
    const end = reader.position + Math.ceil(header.size / block) * block;
    yield { header, body: () => contents(reader, header.size) };
    await reader.skip(end - reader.position);
  }
  await reader.drain();
}

async function* contents(reader: ByteReader, size: number): AsyncGenerator<Buffer> {
  for (let left = size; left > 0; ) {
    const part = await reader.some(left);
    if (part === undefined) throw new BadRequest("the archive is cut short");
    left -= part.length;
    yield part;
  }
}

async function extension(reader: ByteReader, size: number): Promise<Buffer> {
  if (size > longestHeader)
    throw new BadRequest(`the archive has a header of ${size} bytes; ${longestHeader} are allowed`);
  const data = await reader.exactly(size);
  await reader.skip((block - (size % block)) % block);
  return data;
}

function headerOf(head: Buffer, flag: string, overrides: ReadonlyMap<string, string>): TarHeader {
  const name = overrides.get("path") ?? joinedName(head);
  const type = types[flag];
  const isSparse = flag === "S" || overrides.has(sparseMark);
  if (type === undefined || isSparse)
    throw new BadRequest(
      `the archive's ${JSON.stringify(name)} is of a kind that cannot be read (${JSON.stringify(flag)})`,
    );
  // Old archives mark a directory by the slash alone.
  const isDirectory = type === "dir" || (type === "file" && name.endsWith("/"));
  return {
    name,
    type: isDirectory ? "dir" : type,
    mode: octal(head, 100, 8) & 0o7777,
    uid: wholeNumber(overrides.get("uid"), octal(head, 108, 8)),
    gid: wholeNumber(overrides.get("gid"), octal(head, 116, 8)),
    size: type === "file" && !isDirectory ? wholeNumber(overrides.get("size"), octal(head, 124, 12)) : 0,
    mtime: Number(overrides.get("mtime") ?? octal(head, 136, 12)) || 0,
    linkTarget: overrides.get("linkpath") ?? text(head, 157, 100),
  };
}

function joinedName(head: Buffer): string {
  const name = text(head, 0, 100);
  // GNU's own format keeps other things where ustar keeps the prefix.
  const prefix = head.subarray(257, 263).toString("latin1") === "ustar\0" ? text(head, 345, 155) : "";
  return prefix === "" ? name : `${prefix}/${name}`;
}

function isZero(head: Buffer): boolean {
  return head.every((byte) => byte === 0);
}

/** The sum of a header's bytes, its own field read as spaces. */
function checksum(head: Buffer): number {
  let sum = 8 * 32;
  for (let index = 0; index < block; index += 1) if (index < 148 || index >= 156) sum += head[index] ?? 0;
  return sum;
}

/** Names are bytes; one character stands for each byte that is not UTF-8, so that different names stay different. */
function text(data: Buffer, at: number, length: number): string {
  const bytes = data.subarray(at, at + length);
  const end = bytes.indexOf(0);
  const used = bytes.subarray(0, end < 0 ? length : end);
  const decoded = used.toString("utf8");
  return decoded.includes("\ufffd") ? used.toString("latin1") : decoded;
}

function octal(head: Buffer, at: number, length: number): number {
  const first = head[at] ?? 0;
  if ((first & 0x80) !== 0) {
    let value = first & 0x7f;
    for (let index = 1; index < length; index += 1) value = value * 256 + (head[at + index] ?? 0);
    if (!Number.isSafeInteger(value)) throw new BadRequest("the archive holds a number that is too large");
    return value;
  }
  const digits = text(head, at, length).trim();
  if (!/^[0-7]*$/.test(digits)) throw new BadRequest("this is not a tar archive");
  return digits === "" ? 0 : Number.parseInt(digits, 8);
}

function wholeNumber(given: string | undefined, otherwise: number): number {
  if (given === undefined) return otherwise;
  const value = Number(given);
  if (!Number.isSafeInteger(value) || value < 0)
    throw new BadRequest(`the archive holds the number ${JSON.stringify(given)}`);
  return value;
}

/** Of all that a stream of headers says, only what is known is kept. */
function takePaxRecords(data: Buffer, overrides: Map<string, string>): void {
  for (let at = 0; at < data.length; ) {
    const space = data.indexOf(0x20, at);
    const length = space < 0 ? Number.NaN : Number(data.subarray(at, space).toString("latin1"));
    if (!Number.isInteger(length) || length < space - at + 3 || at + length > data.length)
      throw new BadRequest("the archive holds a header that cannot be read");
    const end = at + length - 1;
    const equals = data.indexOf(0x3d, space + 1);
    if (equals > space + 1 && equals < end) {
      const key = data.subarray(space + 1, Math.min(equals, space + 1 + longestKey)).toString("latin1");
      if (paxKeys.has(key)) overrides.set(key, text(data, equals + 1, end - (equals + 1)));
      else if (key.startsWith("GNU.sparse")) overrides.set(sparseMark, "");
    }
    at += length;
  }
}
