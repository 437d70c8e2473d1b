import type { OwnerQuota, OwnerUsage, QuotaRequest } from "@alcove/wire";
import { type ClientFlags, interruptSignal, type JsonFlags, openClient } from "../context.ts";
import { printJson } from "../terminal/output.ts";
import { table } from "../terminal/table.ts";

type QuotaFlags = ClientFlags & JsonFlags;

export interface QuotaSetFlags extends ClientFlags, JsonFlags {
  maxSandboxes?: number;
  maxTtl?: string;
  maxExecTimeout?: string;
  maxMemory?: number;
  maxVcpus?: number;
}

export async function quotaList(flags: QuotaFlags): Promise<void> {
  using client = openClient(flags);
  using interrupt = interruptSignal();
  const quotas: OwnerQuota[] = [];
  for await (const quota of client.quotas.all({ signal: interrupt.signal })) quotas.push(quota);
  if (flags.json) printJson(quotas);
  else if (quotas.length === 0) process.stderr.write("no quotas\n");
  else process.stdout.write(quotaTable(quotas));
}

/** What the owner has and may have, whether it has a quota or not. */
export async function quotaShow(owner: string, flags: QuotaFlags): Promise<void> {
  using client = openClient(flags);
  using interrupt = interruptSignal();
  const usage = await client.quotas.usage(owner, { signal: interrupt.signal });
  if (flags.json) printJson(usage);
  else process.stdout.write(usageTable(usage));
}

export async function quotaSet(owner: string, flags: QuotaSetFlags): Promise<void> {
  const { maxSandboxes, maxTtl, maxExecTimeout, maxMemory, maxVcpus } = flags;
  using client = openClient(flags);
  using interrupt = interruptSignal();
  const fields: { [K in keyof QuotaRequest]: QuotaRequest[K] | undefined } = {
    max_sandboxes: maxSandboxes,
    max_ttl: maxTtl,
    max_exec_timeout: maxExecTimeout,
    max_memory_mb: maxMemory,
    max_vcpus: maxVcpus,
  };
  const request = Object.fromEntries(Object.entries(fields).filter(([, value]) => value !== undefined));
  const quota = await client.quotas.save(owner, request, { signal: interrupt.signal });
  if (flags.json) printJson(quota);
  else process.stdout.write(quotaTable([quota]));
}

export async function quotaRemove(owner: string, flags: ClientFlags): Promise<void> {
  using client = openClient(flags);
  using interrupt = interruptSignal();
  await client.quotas.remove(owner, { signal: interrupt.signal });
  process.stdout.write(`${owner}\n`);
}

function quotaTable(quotas: readonly OwnerQuota[]): string {
  const inherited = (value: number | string) => (value === 0 || value === "0s" ? "default" : String(value));
  return table(
    ["OWNER", "SANDBOXES", "TTL", "EXEC TIMEOUT", "MEMORY", "VCPUS"],
    quotas.map((quota) => [
      quota.owner_id,
      inherited(quota.max_sandboxes),
      inherited(quota.max_ttl),
      inherited(quota.max_exec_timeout),
      quota.max_memory_mb === 0 ? "default" : `${quota.max_memory_mb} MB`,
      inherited(quota.max_vcpus),
    ]),
  );
}

function usageTable(usage: OwnerUsage): string {
  const most = (value: number | string, unit = "") =>
    value === 0 || value === "0s" ? "no limit" : `${value}${unit}`;
  return table(
    ["", "HAS", "MAY HAVE"],
    [
      ["sandboxes", String(usage.active_sandboxes), most(usage.max_sandboxes)],
      ["memory", `${usage.active_memory_mb} MB`, most(usage.max_memory_mb, " MB")],
      ["vcpus", String(usage.active_vcpus), most(usage.max_vcpus)],
      ["ttl", "-", most(usage.max_ttl)],
      ["exec timeout", "-", most(usage.max_exec_timeout)],
      ["quota", usage.quota_configured ? "yes" : "no", "-"],
    ],
  );
}
