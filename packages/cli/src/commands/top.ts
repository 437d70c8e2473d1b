import { setTimeout } from "node:timers/promises";
import { type AlcoveClient, AlcoveError } from "@alcove/sdk";
import type { Sandbox, SandboxStats, SandboxUsage } from "@alcove/wire";
import { parseDuration } from "@alcove/wire/light";
import { type ClientFlags, interruptSignal, type JsonFlags, openClient } from "../context.ts";
import { UsageError } from "../exit-codes.ts";
import { printJson } from "../terminal/output.ts";
import { printable } from "../terminal/printable.ts";
import { table } from "../terminal/table.ts";
import { byteSize, shortDuration } from "../terminal/text.ts";
import { ownerOf } from "./named.ts";

export interface TopFlags extends ClientFlags, JsonFlags {
  owner?: string;
  interval?: string;
  sort?: SortKey;
  limit?: number;
  once?: boolean;
}

/** One sandbox at one moment. */
export interface TopRow {
  readonly sandbox: Sandbox;
  readonly stats: SandboxStats | undefined;
  /** Of one processor, since the look before; undefined before the second. */
  readonly cpuPercent: number | undefined;
}

const usualIntervalMs = 2_000;
const shortestIntervalMs = 500;
const usualLimit = 100;
/** The service asks so many sandboxes for one page of what they use. */
const largestUsagePage = 100;
const enterScreen = "\x1b[?1049h\x1b[?25l";
const leaveScreen = "\x1b[?25h\x1b[?1049l";

const sortKeys = {
  cpu: ({ cpuPercent = -1 }: TopRow) => cpuPercent,
  memory: ({ stats }: TopRow) => stats?.memory_bytes ?? -1,
  disk: ({ stats }: TopRow) => stats?.disk_bytes ?? -1,
  commands: ({ stats }: TopRow) => stats?.commands ?? -1,
};
export type SortKey = keyof typeof sortKeys;

/** A live table of sandboxes and what they use; without a terminal, or with --once, one table of two looks. */
export async function top(flags: TopFlags): Promise<void> {
  const intervalMs = intervalOf(flags.interval);
  if (flags.limit === 0) throw new UsageError("--limit 0: expected 1 or more");
  using client = openClient(flags);
  using interrupt = interruptSignal();
  const { signal } = interrupt;
  const looks = new Looks(client, flags);
  if (flags.once || flags.json || process.stdout.isTTY !== true) {
    await looks.take(signal);
    await setTimeout(intervalMs, undefined, { signal });
    const rows = await looks.take(signal);
    if (flags.json) return printJson(rows.map(presentRow));
    process.stdout.write(topTable(rows, { nowMs: Date.now(), sort: flags.sort ?? "cpu" }));
    return;
  }
  using _screen = ownScreen();
  let rows: readonly TopRow[] = [];
  while (!signal.aborted) {
    let waitMs = intervalMs;
    let trouble = "";
    try {
      rows = await looks.take(signal);
    } catch (error) {
      if (signal.aborted) break;
      // The first look tells what is wrong; later the table stays and says so.
      if (!(error instanceof AlcoveError) || !looks.begun) throw error;
      trouble = error.message;
      waitMs = Math.max(waitMs, (error.retryAfterS ?? 0) * 1_000);
    }
    draw(rows, { trouble, more: looks.more, sort: flags.sort ?? "cpu" });
    await setTimeout(waitMs, undefined, { signal }).catch(() => undefined);
  }
}

/** Looks at the sandboxes again and again, and remembers what is needed to tell how fast figures grow. */
class Looks {
  readonly #client: AlcoveClient;
  readonly #limit: number;
  readonly #ownerId: string | undefined;
  #before = new Map<string, { cpuMs: number; atMs: number }>();
  /** Sandboxes that there are beyond the limit. */
  more = false;
  /** A look has succeeded. */
  begun = false;

  constructor(client: AlcoveClient, flags: TopFlags) {
    this.#client = client;
    this.#limit = flags.limit ?? usualLimit;
    this.#ownerId = ownerOf(flags);
  }

  async take(signal: AbortSignal): Promise<TopRow[]> {
    const looked: SandboxUsage[] = [];
    const ofOwner = this.#ownerId === undefined ? {} : { ownerId: this.#ownerId };
    let cursor: string | undefined;
    do {
      const limit = Math.min(this.#limit - looked.length, largestUsagePage);
      const filter = { ...ofOwner, limit, ...(cursor === undefined ? {} : { cursor }) };
      const page = await this.#client.sandboxStats(filter, { signal });
      looked.push(...page.items);
      cursor = page.nextCursor;
    } while (cursor !== undefined && looked.length < this.#limit);
    this.more = cursor !== undefined;
    const atMs = performance.now();
    const before = this.#before;
    this.#before = new Map();
    this.begun = true;
    return looked.map(({ sandbox, stats }) => {
      const cpuMs = stats?.cpu_usage_ms;
      const last = before.get(sandbox.id);
      if (cpuMs !== undefined) this.#before.set(sandbox.id, { cpuMs, atMs });
      const cpuPercent =
        cpuMs === undefined || last === undefined
          ? undefined
          : Math.max(0, ((cpuMs - last.cpuMs) / (atMs - last.atMs)) * 100);
      return { sandbox, stats, cpuPercent };
    });
  }
}

export function topTable(rows: readonly TopRow[], options: { nowMs: number; sort: SortKey }): string {
  const by = sortKeys[options.sort];
  const sorted = rows.toSorted((a, b) => by(b) - by(a));
  const size = (bytes: number | undefined) => (bytes === undefined ? "-" : byteSize(bytes));
  return table(
    ["ID", "NAME", "OWNER", "STATE", "CPU", "MEMORY", "DISK", "PROCESSES", "COMMANDS", "ENDS IN"],
    sorted.map(({ sandbox, stats, cpuPercent }) => [
      sandbox.id,
      sandbox.name || "-",
      sandbox.owner_id || "-",
      sandbox.state,
      cpuPercent === undefined ? "-" : `${cpuPercent.toFixed(1)} %`,
      size(stats?.memory_bytes),
      size(stats?.disk_bytes),
      stats?.pids === undefined ? "-" : String(stats.pids),
      stats === undefined ? "-" : String(stats.commands),
      shortDuration(Date.parse(sandbox.expires_at) - options.nowMs),
    ]),
  );
}

function presentRow({ sandbox, stats, cpuPercent }: TopRow) {
  return {
    ...sandbox,
    ...(stats === undefined ? {} : { stats }),
    ...(cpuPercent === undefined ? {} : { cpu_percent: Math.round(cpuPercent * 10) / 10 }),
  };
}

function draw(
  rows: readonly TopRow[],
  { trouble, more, sort }: { trouble: string; more: boolean; sort: SortKey },
): void {
  const { columns = 80, rows: height = 24 } = process.stdout;
  const head = `${new Date().toLocaleTimeString()}  ${rows.length}${more ? "+" : ""} sandboxes, most ${sort} first; Ctrl-C leaves`;
  const lines = [head, ...(trouble === "" ? [] : [printable(trouble)]), ""];
  lines.push(...topTable(rows, { nowMs: Date.now(), sort }).trimEnd().split("\n"));
  const shown = lines.slice(0, height - 1).map((line) => `${line.slice(0, columns)}\x1b[K\n`);
  process.stdout.write(`\x1b[H${shown.join("")}\x1b[J`);
}

/** The terminal's other screen until disposed; it is put back on every way out that can be seen. */
function ownScreen(): Disposable {
  const restore = () => process.stdout.write(leaveScreen);
  process.stdout.write(enterScreen);
  process.once("exit", restore);
  return {
    [Symbol.dispose]() {
      process.removeListener("exit", restore);
      restore();
    },
  };
}

function intervalOf(text: string | undefined): number {
  if (text === undefined) return usualIntervalMs;
  const ms = parseDuration(text);
  if (ms === undefined || ms < shortestIntervalMs)
    throw new UsageError(`--interval ${text}: expected a duration of 500ms or more, such as 5s`);
  return ms;
}
