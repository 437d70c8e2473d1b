import type { ApiKey, KeyRequest } from "@alcove/wire";
import { type ClientFlags, interruptSignal, type JsonFlags, openClient } from "../context.ts";
import { printJson } from "../terminal/output.ts";
import { table } from "../terminal/table.ts";

export interface KeyNewFlags extends ClientFlags, JsonFlags {
  owner?: string;
  scope?: ApiKey["scopes"];
  ttl?: string;
}

export async function keyList(flags: ClientFlags & JsonFlags): Promise<void> {
  using client = openClient(flags);
  using interrupt = interruptSignal();
  const keys = await client.keys.list({ signal: interrupt.signal });
  if (flags.json) printJson(keys);
  else if (keys.length === 0) process.stderr.write("no keys\n");
  else process.stdout.write(keyTable(keys));
}

/** The key alone goes to stdout, so that it can be kept in a file. */
export async function keyNew(name: string, flags: KeyNewFlags): Promise<void> {
  const { owner, scope, ttl } = flags;
  using client = openClient(flags);
  using interrupt = interruptSignal();
  const fields: { [K in keyof KeyRequest]: KeyRequest[K] | undefined } = {
    name,
    owner_id: owner,
    scopes: scope,
    ttl,
  };
  const request = Object.fromEntries(Object.entries(fields).filter(([, value]) => value !== undefined));
  const made = await client.keys.create(request as KeyRequest, { signal: interrupt.signal });
  if (flags.json) return printJson(made);
  process.stdout.write(`${made.key}\n`);
  process.stderr.write("keep it: it is told this once\n");
}

export async function keyRevoke(name: string, flags: ClientFlags): Promise<void> {
  using client = openClient(flags);
  using interrupt = interruptSignal();
  await client.keys.revoke(name, { signal: interrupt.signal });
  process.stdout.write(`${name}\n`);
}

function keyTable(keys: readonly ApiKey[]): string {
  return table(
    ["NAME", "OWNER", "SCOPES", "CREATED", "EXPIRES", "LAST USED"],
    keys.map((key) => [
      key.name,
      key.owner_id ?? "all",
      key.scopes.join(","),
      key.created_at ?? "configuration",
      key.expires_at ?? "never",
      key.last_used_at ?? "-",
    ]),
  );
}
