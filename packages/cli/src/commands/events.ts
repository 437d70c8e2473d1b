import { AlcoveError } from "@alcove/sdk";
import type { Event } from "@alcove/wire";
import { type ClientFlags, interruptSignal, type JsonFlags, openClient } from "../context.ts";
import { write } from "../terminal/output.ts";
import { printableLine } from "../terminal/printable.ts";
import { elapsed } from "../terminal/text.ts";
import { idOf } from "./named.ts";

export async function events(
  flags: ClientFlags & JsonFlags & { type?: string; sandbox?: string; owner?: string; since?: string },
): Promise<void> {
  using client = openClient(flags);
  using interrupt = interruptSignal();
  const types = flags.type?.split(",").filter((type) => type !== "");
  // A service that is not there at the first attempt is a mistake; one that goes away later is waited for.
  await client.ready({ signal: interrupt.signal }).catch((error: unknown) => {
    if (!(error instanceof AlcoveError) || error.status === 0) throw error;
  });
  const sandbox =
    flags.sandbox === undefined
      ? undefined
      : await idOf(client, flags.sandbox, { flags, signal: interrupt.signal });
  const stream = client.events({
    ...(types === undefined ? {} : { types }),
    ...(sandbox === undefined ? {} : { sandboxId: sandbox }),
    ...(flags.owner === undefined ? {} : { ownerId: flags.owner }),
    ...(flags.since === undefined ? {} : { lastEventId: flags.since }),
    signal: interrupt.signal,
    onReconnect: (_error, inMs) => {
      process.stderr.write(`alcove: the event stream broke; coming back in ${elapsed(inMs)}\n`);
    },
  });
  for await (const event of stream) {
    await write(process.stdout, flags.json ? `${JSON.stringify(event)}\n` : `${eventLine(event)}\n`);
  }
}

export function eventLine(event: Event): string {
  const columns = [event.timestamp, event.type.padEnd(18), event.sandbox_id.padEnd(15)];
  const data = event.data === undefined ? "" : JSON.stringify(event.data);
  return printableLine(`${columns.join("  ")}  ${data}`.trimEnd());
}
