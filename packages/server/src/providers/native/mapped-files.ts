import { open, readdir } from "node:fs/promises";
import { setTimeout as after } from "node:timers/promises";
import { shuffled } from "../../platform/shuffled.ts";
import { deviceNamed, fileKey } from "./lock-table.ts";

/** Of what the processes of one sandbox have mapped. */
const mostBytes = 16 << 20;
const mostMs = 1_000;

/** A process can hold up who reads what it has mapped: however many do, no more than one reader of the service waits. */
let underWay: Promise<unknown> | undefined;

/**
 * @param pids of processes as the host sees them; who is gone has nothing mapped.
 * @param wanted by `fileKey`.
 * @returns those of them that are mapped, and how many each stands for where there was too much for all.
 */
export async function mappedFilesOf(
  pids: readonly number[],
  wanted: ReadonlySet<string>,
): Promise<ReadonlyMap<string, number>> {
  if (underWay !== undefined) return new Map();
  const reading = readMappings(pids, wanted).finally(() => {
    underWay = undefined;
  });
  underWay = reading;
  return Promise.race([reading, after(2 * mostMs, new Map<string, number>(), { ref: false })]);
}

async function readMappings(
  pids: readonly number[],
  wanted: ReadonlySet<string>,
): Promise<ReadonlyMap<string, number>> {
  const until = performance.now() + mostMs;
  const found = new Set<string>();
  const room = { bytes: mostBytes };
  let read = 0;
  for (const pid of shuffled(pids)) {
    if (room.bytes <= 0 || performance.now() > until) break;
    read++;
    await readProcess(pid, room, (key) => wanted.has(key) && found.add(key));
  }
  return new Map([...found].map((key) => [key, pids.length / read]));
}

/** A process whose first thread has ended shows what is mapped in its others alone, of which the ended ones show nothing either. */
async function readProcess(pid: number, room: { bytes: number }, see: (key: string) => void): Promise<void> {
  const before = room.bytes;
  await readMaps(`/proc/${pid}`, room, see).catch(() => undefined);
  if (room.bytes < before) return;
  for (const thread of await readdir(`/proc/${pid}/task`).catch(() => [])) {
    await readMaps(`/proc/${pid}/task/${thread}`, room, see).catch(() => undefined);
    if (room.bytes < before) return;
  }
}

async function readMaps(folder: string, room: { bytes: number }, see: (key: string) => void): Promise<void> {
  await using file = await open(`${folder}/maps`);
  const buffer = Buffer.alloc(1 << 16);
  let rest = "";
  while (room.bytes > 0) {
    const { bytesRead } = await file.read(buffer, 0, buffer.length);
    if (bytesRead === 0) return;
    room.bytes -= bytesRead;
    const text = rest + buffer.toString("latin1", 0, bytesRead);
    const end = text.lastIndexOf("\n") + 1;
    for (const [, major = "", minor = "", inode] of text
      .slice(0, end)
      .matchAll(/^\S+ \S+ \S+ ([0-9a-f]+):([0-9a-f]+) ([1-9]\d*)/gm))
      see(fileKey({ device: deviceNamed(major, minor), inode: Number(inode) }));
    rest = text.slice(end);
  }
}
