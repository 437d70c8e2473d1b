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
/** Of Unix sockets, bytes. */
const mostOfTable = 1 << 20;

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

/**
 * @param open by their inodes.
 * @returns whether Unix sockets of its network are nowhere open, because they wait in others to be received; where there are too many to
 * be read one may be.
 */
export function hasSocketsOnTheirWay(pid: number, open: ReadonlySet<number>): Promise<boolean> {
  return unlessGone(false, async () => {
    if (await isMachinesNetwork(pid)) return false;
    await using table = await openFile(`/proc/${pid}/net/unix`);
    const buffer = Buffer.alloc(mostOfTable);
    let length = 0;
    while (length < mostOfTable) {
      const { bytesRead } = await table.read(buffer, length, mostOfTable - length);
      if (bytesRead === 0)
        return unixSocketsOf(buffer.toString("latin1", 0, length)).some((inode) => !open.has(inode));
      length += bytesRead;
    }
    return true;
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

/** Piece by piece: connections that were closed a moment ago stand in a table too, hundreds of thousands of them, and in no count of it. */
async function heldInFile(
  path: string,
  held: (sending: number, receiving: number) => number,
): Promise<number> {
  const file = await openFile(path).catch((error: unknown) => {
    if (isMissingV6(path, error)) return undefined;
    throw error;
  });
  if (file === undefined) return 0;
  await using _ = file;
  const buffer = Buffer.alloc(1 << 16);
  let [sum, rest] = [0, ""];
  for (;;) {
    const { bytesRead } = await file.read(buffer, 0, buffer.length);
    if (bytesRead === 0) return sum + heldIn(rest, held);
    const text = rest + buffer.toString("latin1", 0, bytesRead);
    const end = text.lastIndexOf("\n") + 1;
    sum += heldIn(text.slice(0, end), held);
    rest = text.slice(end);
  }
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
