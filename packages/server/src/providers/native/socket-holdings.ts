import { open as openFile, readFile, stat } from "node:fs/promises";

/** What a byte that waits in a connection can hold: a fragment of a page, which what was sent around it has used up. */
const heldByByte = 32 * 1024;
/** What a connection's queue holds at most with the sizes that sandboxes have, measured: 33 MB. */
const heldByQueue = 34 << 20;
/** For each byte the kernel counts in the queue of a socket for datagrams: 62 MB in 212,992 bytes were measured. */
const heldByCountedByte = 320;
/** A datagram that was begun and not finished: 17 fragments. */
const heldByBegunDatagram = 17 * heldByByte;
/** Of a process, or of the network that it was the last one in. */
const goneCodes = new Set(["ENOENT", "EINVAL", "ESRCH", "ENXIO"]);
/** The tables of so many sockets are read, which takes 100 ms of another thread; of more, each counts as one that holds as much as it can. */
const mostRead = 20_000;
/** Of Unix sockets, bytes: some 100,000 of them. */
const mostOfTable = 8 << 20;

/**
 * @param pid of a process of the sandbox, as the host sees it.
 * @returns the most that its sockets can hold beyond what is counted as its memory, in bytes; 0 for the machine's own network,
 * and when the process is gone.
 */
export async function socketHoldings(pid: number): Promise<number> {
  return unlessGone(0, async () => {
    const { connections, datagrams } = await ownSockets(pid);
    // A table of connections is one of the whole machine, and takes milliseconds even where it has none of them.
    const streams = await queued(pid, ["tcp", "tcp6"], connections, heldByConnection);
    return streams + (await queued(pid, ["udp", "udp6"], datagrams, heldByDatagrams));
  });
}

/** @returns how many ends of connections the network has that is the sandbox's own, those included that nobody has accepted; 0 as above. */
export function connectionsOf(pid: number): Promise<number> {
  return unlessGone(0, async () => (await ownSockets(pid)).connections);
}

/** @returns the Unix sockets of its network, by their inodes; undefined where there are too many to be read, none of the machine's. */
export function unixSocketsIn(pid: number): Promise<readonly number[] | undefined> {
  return unlessGone<readonly number[] | undefined>([], async () => {
    if (await isMachinesNetwork(pid)) return [];
    const found: number[] = [];
    let length = 0;
    for await (const lines of linesOf(`/proc/${pid}/net/unix`)) {
      for (const inode of unixSocketsOf(lines)) found.push(inode);
      length += lines.length;
      if (length > mostOfTable) return undefined;
    }
    return found;
  });
}

/** The inodes of `/proc/net/unix`; who has not been accepted has none. */
export function unixSocketsOf(table: string): number[] {
  return [...table.matchAll(/^[0-9a-f]+: (?:[0-9A-F]+ ){5} *([1-9]\d*)/gm)].map(([, inode]) => Number(inode));
}

async function ownSockets(pid: number): Promise<{ connections: number; datagrams: number }> {
  if (await isMachinesNetwork(pid)) return { connections: 0, datagrams: 0 };
  return socketsOf((await read(pid, "sockstat")) + (await read(pid, "sockstat6")));
}

async function unlessGone<T>(gone: T, look: () => Promise<T>): Promise<T> {
  try {
    return await look();
  } catch (error) {
    if (error instanceof Error && "code" in error && goneCodes.has(String(error.code))) return gone;
    throw error;
  }
}

/** How many sockets `/proc/net/sockstat` and `sockstat6` tell of. */
export function socketsOf(sockstat: string): { connections: number; datagrams: number } {
  const sum = (protocol: string) =>
    [...sockstat.matchAll(new RegExp(`^${protocol}6?: inuse (\\d+)`, "gm"))].reduce(
      (total, [, count]) => total + Number(count),
      0,
    );
  return { connections: sum("TCP"), datagrams: sum("UDP") };
}

/** Adds up a table of `/proc/net`, whose fifth field is `sending:receiving`, in hexadecimal. */
export function heldIn(table: string, held: (sending: number, receiving: number) => number): number {
  let sum = 0;
  for (const [, sending = "0", receiving = "0"] of table.matchAll(
    /^ *\d+: \S+ \S+ \S+ ([0-9A-F]{8}):([0-9A-F]{8}) /gm,
  ))
    sum += held(Number.parseInt(sending, 16), Number.parseInt(receiving, 16));
  return sum;
}

/** By the bytes that wait. */
export function heldByConnection(sending: number, receiving: number): number {
  return Math.min(sending * heldByByte, heldByQueue) + Math.min(receiving * heldByByte, heldByQueue);
}

/** By what the kernel counts. */
export function heldByDatagrams(sending: number, receiving: number): number {
  return receiving * heldByCountedByte + (sending > 0 ? heldByBegunDatagram : 0);
}

async function queued(
  pid: number,
  tables: readonly string[],
  sockets: number,
  held: (sending: number, receiving: number) => number,
): Promise<number> {
  if (sockets === 0) return 0;
  if (sockets > mostRead) return sockets * heldByQueue;
  let sum = 0;
  for (const table of tables) sum += await heldInFile(`/proc/${pid}/net/${table}`, held);
  return sum;
}

async function heldInFile(
  path: string,
  held: (sending: number, receiving: number) => number,
): Promise<number> {
  let sum = 0;
  for await (const lines of linesOf(path)) sum += heldIn(lines, held);
  return sum;
}

/** Piece by piece: connections that were closed a moment ago stand in a table too, hundreds of thousands of them, and in no count of it. */
async function* linesOf(path: string): AsyncGenerator<string> {
  const file = await openFile(path).catch((error: unknown) => {
    if (isMissingV6(path, error)) return undefined;
    throw error;
  });
  if (file === undefined) return;
  await using _ = file;
  const buffer = Buffer.alloc(1 << 16);
  let rest = "";
  for (;;) {
    const { bytesRead } = await file.read(buffer, 0, buffer.length);
    if (bytesRead === 0) break;
    const text = rest + buffer.toString("latin1", 0, bytesRead);
    const end = text.lastIndexOf("\n") + 1;
    yield text.slice(0, end);
    rest = text.slice(end);
  }
  yield rest;
}

/** The files of one network are the same, whoever looks at them. */
async function isMachinesNetwork(pid: number): Promise<boolean> {
  const [theirs, ours] = await Promise.all([stat(`/proc/${pid}/net/tcp`), stat("/proc/self/net/tcp")]);
  return theirs.ino === ours.ino;
}

function read(pid: number, name: string): Promise<string> {
  return readFile(`/proc/${pid}/net/${name}`, "utf8").catch((error: unknown) => {
    if (isMissingV6(name, error)) return "";
    throw error;
  });
}

/** On machines without IPv6. */
function isMissingV6(path: string, error: unknown): boolean {
  return path.endsWith("6") && error instanceof Error && "code" in error && error.code === "ENOENT";
}
