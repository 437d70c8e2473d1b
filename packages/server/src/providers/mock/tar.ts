import { BadRequest } from "../../ports/errors.ts";
import type { FileEntry } from "../../ports/sandbox-operations.ts";

/** One entry of an archive held in memory. */
export interface TarEntry {
  name: string;
  type: "file" | "dir" | "symlink" | "other";
  mode: number;
  content: Buffer;
  symlinkTarget?: string;
}

const block = 512;
const longestName = 100;

/** Writes a tar, long names in pax headers. */
export async function* writeTar(
  entries: Iterable<FileEntry>,
  read: (entry: FileEntry) => Promise<Uint8Array>,
): AsyncGenerator<Buffer> {
  for (const entry of entries) {
    const content = entry.type === "file" ? await read(entry) : Buffer.alloc(0);
    const name = entry.type === "dir" ? `${entry.name}/` : entry.name;
    const link = entry.symlinkTarget ?? "";
    const records = [
      ...(fits(name) ? [] : [paxRecord("path", name)]),
      ...(fits(link) ? [] : [paxRecord("linkpath", link)]),
    ];
    if (records.length > 0) {
      const pax = Buffer.concat(records);
      yield header({
        name: "pax",
        type: "x",
        size: pax.length,
        mode: 0o644,
        uid: 0,
        gid: 0,
        mtime: 0,
        link: "",
      });
      yield padded(pax);
    }
    const type = entry.type === "dir" ? "5" : entry.type === "symlink" ? "2" : "0";
    const mtime = Math.floor(entry.modifiedAt.getTime() / 1_000);
    yield header({
      name,
      type,
      size: content.length,
      mode: entry.mode,
      uid: entry.uid,
      gid: entry.gid,
      mtime,
      link,
    });
    if (content.length > 0) yield padded(content);
  }
  yield Buffer.alloc(2 * block);
}

/** @throws BadRequest for what is no tar. */
export function* readTar(archive: Buffer): Generator<TarEntry> {
  let at = 0;
  let overrides = new Map<string, string>();
  while (at + block <= archive.length) {
    const head = archive.subarray(at, at + block);
    at += block;
    if (head.every((byte) => byte === 0)) return;
    if (octal(head, 148, 8) !== checksum(head)) throw new BadRequest("the body is not a tar archive");
    const size = octal(head, 124, 12);
    if (at + size > archive.length) throw new BadRequest("the tar archive is cut short");
    const content = archive.subarray(at, at + size);
    at += Math.ceil(size / block) * block;
    const type = String.fromCharCode(head[156] ?? 0);
    if (type === "x") {
      overrides = paxRecords(content);
      continue;
    }
    if (type === "L" || type === "K") {
      overrides.set(type === "L" ? "path" : "linkpath", field(content, 0, content.length));
      continue;
    }
    if (type === "g") continue;
    const prefix = field(head, 257, 5) === "ustar" ? field(head, 345, 155) : "";
    const ownName = field(head, 0, longestName);
    const name = overrides.get("path") ?? (prefix === "" ? ownName : `${prefix}/${ownName}`);
    const link = overrides.get("linkpath") ?? field(head, 157, longestName);
    overrides = new Map();
    const kind =
      type === "5" ? "dir" : type === "2" ? "symlink" : type === "0" || type === "\0" ? "file" : "other";
    yield {
      name: name.replace(/\/+$/, ""),
      type: kind,
      mode: octal(head, 100, 8) & 0o7777,
      content,
      ...(kind === "symlink" ? { symlinkTarget: link } : {}),
    };
  }
}

function header(entry: {
  name: string;
  type: string;
  size: number;
  mode: number;
  uid: number;
  gid: number;
  mtime: number;
  link: string;
}): Buffer {
  const head = Buffer.alloc(block);
  head.write(truncated(entry.name), 0, "latin1");
  const number = (value: number, at: number, length: number) =>
    head.write(value.toString(8).padStart(length - 1, "0"), at, "latin1");
  number(entry.mode, 100, 8);
  number(entry.uid, 108, 8);
  number(entry.gid, 116, 8);
  number(entry.size, 124, 12);
  number(entry.mtime, 136, 12);
  head.write(entry.type, 156, "latin1");
  head.write(truncated(entry.link), 157, "latin1");
  head.write("ustar\u000000", 257, "latin1");
  head.write(`${checksum(head).toString(8).padStart(6, "0")}\0 `, 148, "latin1");
  return head;
}

const fits = (text: string) => Buffer.byteLength(text) <= longestName;
const truncated = (text: string) => Buffer.from(text).subarray(0, longestName).toString("latin1");

function padded(content: Uint8Array): Buffer {
  return Buffer.concat([content, Buffer.alloc((block - (content.length % block)) % block)]);
}

/** The sum of a header's bytes, its own field read as spaces. */
function checksum(head: Buffer): number {
  let sum = 8 * 32;
  for (let index = 0; index < block; index += 1) if (index < 148 || index >= 156) sum += head[index] ?? 0;
  return sum;
}

function field(data: Buffer, at: number, length: number): string {
  const bytes = data.subarray(at, at + length);
  const end = bytes.indexOf(0);
  return bytes.subarray(0, end < 0 ? length : end).toString("utf8");
}

function octal(head: Buffer, at: number, length: number): number {
  const value = Number.parseInt(field(head, at, length).trim() || "0", 8);
  if (!Number.isSafeInteger(value))
    throw new BadRequest("the tar archive holds a number that cannot be read");
  return value;
}

function paxRecord(key: string, value: string): Buffer {
  const rest = Buffer.from(` ${key}=${value}\n`);
  let length = rest.length + 1;
  while (String(length).length + rest.length !== length) length += 1;
  return Buffer.concat([Buffer.from(String(length)), rest]);
}

function paxRecords(content: Buffer): Map<string, string> {
  const records = new Map<string, string>();
  let at = 0;
  while (at < content.length) {
    const space = content.indexOf(0x20, at);
    const length = Number(content.subarray(at, space).toString("latin1"));
    if (space < 0 || !Number.isInteger(length) || length < 5 || at + length > content.length)
      throw new BadRequest("the tar archive holds a pax header that cannot be read");
    const record = content.subarray(space + 1, at + length - 1).toString("utf8");
    const equals = record.indexOf("=");
    records.set(record.slice(0, equals), record.slice(equals + 1));
    at += length;
  }
  return records;
}
