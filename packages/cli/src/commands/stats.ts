import type { SandboxStats } from "@alcove/wire";
import { type ClientFlags, interruptSignal, type JsonFlags, openClient } from "../context.ts";
import { printJson } from "../terminal/output.ts";
import { table } from "../terminal/table.ts";
import { elapsed } from "../terminal/text.ts";
import { idOf } from "./named.ts";
import { usedOf } from "./usage.ts";

/** What one sandbox uses now. */
export async function stats(sandbox: string, flags: ClientFlags & JsonFlags): Promise<void> {
  using client = openClient(flags);
  using interrupt = interruptSignal();
  const id = await idOf(client, sandbox, { flags, signal: interrupt.signal });
  const figures = await client.stats(id, { signal: interrupt.signal });
  if (flags.json) printJson(figures);
  else process.stdout.write(statsTable(figures));
}

export function statsTable(figures: SandboxStats): string {
  const { cpu_usage_ms } = figures;
  return table(
    ["", "USED"],
    [
      ["processor time", cpu_usage_ms === undefined ? "-" : elapsed(cpu_usage_ms)],
      ["memory", usedOf(figures.memory_bytes, figures.memory_limit_bytes)],
      ["disk", usedOf(figures.disk_bytes, figures.disk_limit_bytes)],
      ["processes", usedOf(figures.pids, figures.pids_limit, String)],
      ["commands", String(figures.commands)],
    ],
  );
}
