import { once } from "node:events";
import net, { type AddressInfo } from "node:net";
import type { Duplex } from "node:stream";
import { type AlcoveClient, AlcoveError } from "@alcove/sdk";
import { type ClientFlags, interruptSignal, openClient } from "../context.ts";
import { UsageError } from "../exit-codes.ts";
import { printable } from "../terminal/printable.ts";
import { parsePort } from "../terminal/text.ts";
import { idOf } from "./named.ts";

/** Local connections at once. */
const mostConnections = 256;

/**
 * Listens on this machine and carries each connection to a port of a sandbox, until Ctrl-C.
 * @throws AlcoveError `not_found` when a connection comes and the sandbox is gone.
 */
export async function forward(
  wanted: string,
  ports: readonly string[],
  flags: ClientFlags & { address?: string },
): Promise<void> {
  const pairs = ports.map(parsePair);
  using client = openClient(flags);
  using interrupt = interruptSignal();
  const over = Promise.withResolvers<void>();
  // It may be over while the next port is still being listened on.
  over.promise.catch(() => undefined);
  const gone = new AbortController();
  const signal = AbortSignal.any([interrupt.signal, gone.signal]);
  const onGone = (error: AlcoveError) => {
    over.reject(error);
    gone.abort();
  };
  const id = await idOf(client, wanted, { flags, signal });
  // Tells what is wrong with the sandbox before anybody connects.
  await client.sandbox(id, { signal });
  const host = flags.address ?? "127.0.0.1";
  await using opened = new AsyncDisposableStack();
  for (const { local, port } of pairs) {
    const server = opened.adopt(
      await listen({ client, id, port, signal, onGone }, { host, local }),
      closeServer,
    );
    const address = server.address() as AddressInfo;
    process.stdout.write(`${hostText(host)}:${address.port} -> ${id} port ${port}\n`);
  }
  if (signal.aborted) over.resolve();
  else signal.addEventListener("abort", () => over.resolve(), { once: true });
  await over.promise;
}

interface Tunnelled {
  client: AlcoveClient;
  id: string;
  port: number;
  signal: AbortSignal;
  /** The sandbox is not there any more. */
  onGone: (error: AlcoveError) => void;
}

async function listen(to: Tunnelled, at: { host: string; local: number }): Promise<net.Server> {
  const server = net.createServer({ allowHalfOpen: true, noDelay: true }, (local) => void carry(local, to));
  server.maxConnections = mostConnections;
  server.listen({ host: at.host, port: at.local });
  try {
    await once(server, "listening");
  } catch (error) {
    const { code } = error as NodeJS.ErrnoException;
    if (code !== "EADDRINUSE") throw error;
    throw new UsageError(`port ${at.local} of this machine is taken; name another, or 0 for any free one`);
  }
  return server;
}

async function carry(local: net.Socket, { client, id, port, signal, onGone }: Tunnelled): Promise<void> {
  local.on("error", () => undefined);
  const gone = new AbortController();
  local.once("close", () => gone.abort());
  // An orderly end would tell who reads that this was all there is.
  const leave = () => void local.resetAndDestroy();
  signal.addEventListener("abort", leave, { once: true });
  local.once("close", () => signal.removeEventListener("abort", leave));
  let remote: Duplex;
  try {
    remote = await client.openTunnel(id, port, { signal: AbortSignal.any([signal, gone.signal]) });
  } catch (error) {
    const left = gone.signal.aborted;
    leave();
    if (signal.aborted) return;
    if (error instanceof AlcoveError && error.code === "not_found") onGone(error);
    else if (!left) tell(error);
    return;
  }
  remote.on("error", (error) => {
    if (error instanceof AlcoveError && !signal.aborted && !local.destroyed) tell(error);
  });
  remote.once("close", () => {
    // Where all was given, the other end has its end too, and what it still sends is nobody's.
    if (remote.readableEnded) local.resume();
    else leave();
  });
  local.once("close", () => {
    if (!remote.writableFinished || !remote.readableEnded) remote.destroy();
  });
  local.pipe(remote).pipe(local);
}

function tell(error: unknown): void {
  process.stderr.write(`alcove: ${printable(error instanceof Error ? error.message : String(error))}\n`);
}

async function closeServer(server: net.Server): Promise<void> {
  const closed = once(server, "close");
  server.close();
  await closed;
}

/** `8080:3000`, or `3000` for the same on both sides. */
function parsePair(text: string): { local: number; port: number } {
  const [local = "", port = local, ...more] = text.split(":");
  if (more.length > 0) throw new UsageError(`${text} is not LOCAL:PORT`);
  return { local: local === "0" ? 0 : parsePort(local), port: parsePort(port) };
}

function hostText(host: string): string {
  return host.includes(":") ? `[${host}]` : host;
}
