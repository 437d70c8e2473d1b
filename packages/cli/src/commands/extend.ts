import { type ClientFlags, interruptSignal, type JsonFlags, openClient } from "../context.ts";
import { printJson, printLines } from "../terminal/output.ts";
import { shortDuration } from "../terminal/text.ts";
import { idOf } from "./named.ts";

export async function extend(wanted: string, ttl: string, flags: ClientFlags & JsonFlags): Promise<void> {
  using client = openClient(flags);
  using interrupt = interruptSignal();
  const id = await idOf(client, wanted, { flags, signal: interrupt.signal });
  const sandbox = await client.extend(id, ttl, { signal: interrupt.signal });
  if (flags.json) printJson(sandbox);
  else {
    const left = shortDuration(Date.parse(sandbox.expires_at) - Date.now() + 500);
    printLines([`${sandbox.id} ends in ${left}, at ${sandbox.expires_at}`]);
  }
}
