import type { SandboxFilter } from "@alcove/sdk";
import type { Sandbox, SandboxState, SandboxStats, SandboxUsage } from "@alcove/wire";
import { type ClientFlags, interruptSignal, type JsonFlags, openClient } from "../context.ts";
import { printJson, printLines } from "../terminal/output.ts";
import { table } from "../terminal/table.ts";
import { shortDuration } from "../terminal/text.ts";
import { ownerOf } from "./named.ts";
import { usedOf } from "./usage.ts";

export interface LsFlags extends ClientFlags, JsonFlags {
  state?: SandboxState;
  owner?: string;
  provider?: string;
  metadata?: Record<string, string>;
  limit?: number;
  quiet?: boolean;
  words?: boolean;
  stats?: boolean;
}

/** A shell that completes a word stands still meanwhile. */
const wordsWithinMs = 2_000;

export async function ls(flags: LsFlags): Promise<void> {
  const filter = sandboxFilter(flags);
  using client = openClient(flags);
  using interrupt = interruptSignal();
  const signal = flags.words
    ? AbortSignal.any([interrupt.signal, AbortSignal.timeout(wordsWithinMs)])
    : interrupt.signal;
  const found: SandboxUsage[] = [];
  const matching = flags.stats
    ? client.allSandboxStats(filter, { signal })
    : bare(client.allSandboxes(filter, { signal }));
  for await (const usage of matching) {
    found.push(usage);
    if (flags.limit !== undefined && found.length >= flags.limit) break;
  }
  const sandboxes = found.map(({ sandbox }) => sandbox);
  const usage = flags.stats ? new Map(found.map(({ sandbox, stats }) => [sandbox.id, stats])) : undefined;
  const withUsage = (sandbox: Sandbox) => ({ ...sandbox, stats: usage?.get(sandbox.id) });
  if (flags.json) printJson(usage === undefined ? sandboxes : sandboxes.map(withUsage));
  else if (flags.words) printLines(sandboxes.flatMap(wordsOf));
  else if (flags.quiet) printLines(sandboxes.map(({ id }) => id));
  else if (sandboxes.length === 0) process.stderr.write("no sandboxes\n");
  else process.stdout.write(sandboxTable(sandboxes, Date.now(), usage));
}

/** For the completion of a shell, which may take what is more than a plain word for a command of its own. */
export function wordsOf({ id, name = "" }: Pick<Sandbox, "id" | "name">): string[] {
  return [id, name].filter((word) => /^[a-z0-9][a-z0-9-]*$/.test(word));
}

async function* bare(sandboxes: AsyncIterable<Sandbox>): AsyncGenerator<SandboxUsage> {
  for await (const sandbox of sandboxes) yield { sandbox };
}

/** @param usage what they use now; undefined: nobody asked. */
export function sandboxTable(
  sandboxes: readonly Sandbox[],
  nowMs: number,
  usage?: ReadonlyMap<string, SandboxStats | undefined>,
): string {
  const names = sandboxes.some(({ name }) => name);
  const owners = sandboxes.some(({ owner_id }) => owner_id);
  const labels = sandboxes.some(({ metadata }) => Object.keys(metadata).length > 0);
  const header = ["ID", "STATE", "PROVIDER", "IMAGE", "MEMORY", "VCPUS", "AGE", "ENDS IN"];
  return table(
    [
      ...header,
      ...(usage ? ["IN USE", "DISK", "COMMANDS"] : []),
      ...(names ? ["NAME"] : []),
      ...(owners ? ["OWNER"] : []),
      ...(labels ? ["METADATA"] : []),
    ],
    sandboxes.map((sandbox) => [
      sandbox.id,
      sandbox.state,
      sandbox.provider,
      sandbox.image,
      `${sandbox.memory_mb} MB`,
      String(sandbox.vcpus),
      shortDuration(nowMs - Date.parse(sandbox.created_at)),
      shortDuration(Date.parse(sandbox.expires_at) - nowMs),
      ...(usage ? usageCells(usage.get(sandbox.id)) : []),
      ...(names ? [sandbox.name || "-"] : []),
      ...(owners ? [sandbox.owner_id || "-"] : []),
      ...(labels ? [metadataText(sandbox.metadata)] : []),
    ]),
  );
}

function usageCells(stats: SandboxStats | undefined): string[] {
  if (stats === undefined) return ["-", "-", "-"];
  return [usedOf(stats.memory_bytes, undefined), usedOf(stats.disk_bytes, undefined), String(stats.commands)];
}

function metadataText(metadata: Readonly<Record<string, string>>): string {
  const text = Object.entries(metadata)
    .map(([name, value]) => `${name}=${value}`)
    .join(" ");
  return text === "" ? "-" : text.length > 60 ? `${text.slice(0, 59)}…` : text;
}

function sandboxFilter(flags: LsFlags): SandboxFilter {
  const ownerId = ownerOf(flags);
  return {
    ...(flags.state === undefined ? {} : { state: flags.state }),
    ...(ownerId === undefined ? {} : { ownerId }),
    ...(flags.provider === undefined ? {} : { provider: flags.provider }),
    ...(flags.metadata === undefined ? {} : { metadata: flags.metadata }),
    ...(flags.limit === undefined || flags.limit === 0 ? {} : { limit: Math.min(flags.limit, 100) }),
  };
}
