import type { AuditRecord } from "@alcove/wire";
import { type ClientFlags, interruptSignal, type JsonFlags, openClient } from "../context.ts";
import { printJson } from "../terminal/output.ts";
import { table } from "../terminal/table.ts";

export interface AuditFlags extends ClientFlags, JsonFlags {
  limit?: number;
  actor?: string;
  method?: string;
  status?: number;
  path?: string;
  since?: string;
  until?: string;
  cursor?: string;
  csv?: boolean;
}

export async function audit(flags: AuditFlags): Promise<void> {
  const { limit, actor, method, status, path, since, until, cursor } = flags;
  const filter = { limit, actor, method, status, path, since, until, cursor };
  using client = openClient(flags);
  using interrupt = interruptSignal();
  if (flags.csv) {
    process.stdout.write(await client.audit.csv(filter, { signal: interrupt.signal }));
    return;
  }
  const { items: records, nextCursor } = await client.audit.page(filter, { signal: interrupt.signal });
  if (flags.json) printJson(records);
  else if (records.length === 0) process.stderr.write("nothing is recorded\n");
  else process.stdout.write(auditTable(records));
  if (nextCursor !== undefined) process.stderr.write(`there are older ones: --cursor ${nextCursor}\n`);
}

function auditTable(records: readonly AuditRecord[]): string {
  return table(
    ["TIME", "ACTOR", "METHOD", "PATH", "STATUS", "FROM"],
    records.map((record) => [
      record.created_at,
      record.actor,
      record.method,
      record.path,
      String(record.status),
      record.remote_addr,
    ]),
  );
}
