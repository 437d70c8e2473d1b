import { open, readFile } from "node:fs/promises";

/** Each answer has a page at most and holds up all who lock something meanwhile: so much tells whose most of them are. */
const mostBytes = 1 << 20;
const mostMs = 1_000;

export interface FileLock {
  /** As the host sees it; of locks that belong to an open file, none. */
  pid: number | undefined;
  /** As `deviceName` says it. */
  device: string;
  inode: number;
}

export function fileKey({ device, inode }: { device: string; inode: number }): string {
  return `${device} ${inode}`;
}

/** A part of `/proc/locks`, or all of it. */
export interface LockSample {
  locks: readonly FileLock[];
  whole: boolean;
  /** What all locks of the machine take; undefined where only the machine's root may know. */
  bytes: number | undefined;
}

export async function sampleLocks(): Promise<LockSample> {
  const [part, bytes] = await Promise.all([readTable(), lockBytes()]);
  return { ...part, bytes };
}

async function readTable(): Promise<Omit<LockSample, "bytes">> {
  const until = performance.now() + mostMs;
  await using file = await open("/proc/locks");
  const buffer = Buffer.alloc(1 << 16);
  let text = "";
  while (text.length < mostBytes && performance.now() < until) {
    const { bytesRead } = await file.read(buffer, 0, buffer.length);
    if (bytesRead === 0) return { locks: locksOf(text), whole: true };
    text += buffer.toString("latin1", 0, bytesRead);
  }
  return { locks: locksOf(text), whole: false };
}

export function locksOf(table: string): FileLock[] {
  const lines = table.matchAll(/^\d+: (?:-> )?\w+ +\w+ +\w+ +(-?\d+) ([0-9a-f]+):([0-9a-f]+):(\d+) /gm);
  return [...lines].map(([, pid, major = "", minor = "", inode]) => ({
    pid: Number(pid) > 0 ? Number(pid) : undefined,
    device: deviceNamed(major, minor),
    inode: Number(inode),
  }));
}

async function lockBytes(): Promise<number | undefined> {
  return lockBytesOf(await readFile("/proc/slabinfo", "latin1").catch(() => ""));
}

export function lockBytesOf(slabinfo: string): number | undefined {
  const [, number, size] = /^file_lock_cache +\d+ +(\d+) +(\d+) /m.exec(slabinfo) ?? [];
  return number === undefined ? undefined : Number(number) * Number(size);
}

/** @param major and `minor` as `/proc` gives them, in hexadecimal digits. */
export function deviceNamed(major: string, minor: string): string {
  return `${Number.parseInt(major, 16)}:${Number.parseInt(minor, 16)}`;
}

/** @param device as `stat` gives it. */
export function deviceName(device: number): string {
  const number = BigInt(device);
  const major = ((number >> 8n) & 0xfffn) | ((number >> 32n) & ~0xfffn);
  const minor = (number & 0xffn) | ((number >> 12n) & ~0xffn & 0xffff_ffffn);
  return `${major}:${minor}`;
}
