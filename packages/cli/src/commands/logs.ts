import { type ClientFlags, interruptSignal, type JsonFlags, openClient } from "../context.ts";
import { printJson } from "../terminal/output.ts";
import { printable } from "../terminal/printable.ts";
import { idOf } from "./named.ts";

const defaultLines = 100;

export async function logs(
  sandbox: string,
  flags: ClientFlags & JsonFlags & { lines?: number },
): Promise<void> {
  using client = openClient(flags);
  using interrupt = interruptSignal();
  const id = await idOf(client, sandbox, { flags, signal: interrupt.signal });
  const lines = await client.logs(id, flags.lines ?? defaultLines, { signal: interrupt.signal });
  if (flags.json) printJson(lines);
  else process.stdout.write(lines.map((line) => `${printable(line)}\n`).join(""));
}
