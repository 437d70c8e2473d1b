import { execFile, spawn } from "node:child_process";
import { once } from "node:events";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import path from "node:path";
import { setTimeout as delay } from "node:timers/promises";
import { promisify } from "node:util";
import { KeepAliveClient } from "../keep-alive-client.ts";
import type { Row } from "../row.ts";
import { startService } from "../service.ts";
import { summarize } from "../stats.ts";

const warmup = 1_000;
const traced = 500;
/** Until perf has begun, and until its buffers are out. */
const settleMs = 700;
// Waking is told by who wakes; the wake-up itself, where the other processor does it, by whatever runs there.
const traces = ["waking", "wakeup_new", "switch", "process_exec"].map((name) => `sched:sched_${name}`);

interface Event {
  us: number;
  /** On whose behalf. */
  thread: number;
  name: string;
  text: string;
}

/** What is looked for next, and how the time since the one before is called. */
interface Hop {
  what: string;
  ends: (event: Event, known: Threads) => boolean;
}

interface Threads {
  client: number;
  service: number;
  agent?: number | undefined;
  monitor?: number | undefined;
  command?: number | undefined;
}

type Who = keyof Threads;

const target = (event: Event) => {
  const found = /(?:next_comm|^comm)=(.+?) (?:next_)?pid=(\d+)/.exec(event.text);
  return found === null ? undefined : { comm: found[1] ?? "", thread: Number(found[2]) };
};

/** `by` wakes `who`; whom it wakes first under that name is who it is from then on. */
function wakes(by: Who, who: Who, comm?: string): Hop["ends"] {
  return (event, known) => {
    if (!event.name.endsWith("waking") || event.thread !== known[by]) return false;
    const woken = target(event);
    if (woken === undefined || (comm !== undefined && woken.comm !== comm)) return false;
    if (comm === undefined) return woken.thread === known[who];
    known[who] = woken.thread;
    return true;
  };
}

const runs = (who: Who): Hop["ends"] => {
  return (event, known) => event.name.endsWith("switch") && target(event)?.thread === known[who];
};

const hops: readonly Hop[] = [
  { what: "client: the request out", ends: wakes("client", "service") },
  { what: "service runs", ends: runs("service") },
  { what: "service: HTTP, route, service, to the agent", ends: wakes("service", "agent", "alcove-agent") },
  { what: "agent runs", ends: runs("agent") },
  { what: "agent: request, pipes, to the monitor", ends: wakes("agent", "monitor", "alcove-monitor") },
  { what: "monitor runs", ends: runs("monitor") },
  {
    what: "monitor: score, clone",
    ends: (event, known) => {
      if (!event.name.endsWith("wakeup_new") || event.thread !== known.monitor) return false;
      known.command = target(event)?.thread;
      return true;
    },
  },
  { what: "command runs", ends: runs("command") },
  {
    what: "command: session, ids, rights, execve",
    ends: (event, known) => event.name.endsWith("exec") && event.thread === known.command,
  },
  { what: "command: loader, main, exit", ends: wakes("command", "monitor") },
  { what: "monitor runs (2)", ends: runs("monitor") },
  { what: "monitor: end, report", ends: wakes("monitor", "agent") },
  { what: "agent runs (2)", ends: runs("agent") },
  { what: "agent: output, answer", ends: wakes("agent", "service") },
  { what: "service runs (2)", ends: runs("service") },
  { what: "service: frames, answer", ends: wakes("service", "client") },
  { what: "client runs", ends: runs("client") },
];
/** What a command takes without any of us: a fork, its process, an exec and an end. */
const floorHops = new Set([
  "monitor: score, clone",
  "command runs",
  "command: session, ids, rights, execve",
  "command: loader, main, exit",
]);

/**
 * Where the time of a buffered `true` goes, by the scheduler's traces (`perf`, as root): commands in which every process slept when it was
 * woken, so that each hop is a wake-up. Tracing costs some of it.
 */
export async function execHops(): Promise<Row[]> {
  if (!(await promisify(execFile)("perf", ["--version"]).catch(() => undefined))) return [];
  await using service = await startService({ ALCOVE_PROVIDERS_DEFAULT: "native" });
  const client = new KeepAliveClient(service.url);
  const { id } = await client.expect<{ id: string }>(201, "POST", "/sandboxes", {});
  const exec = () =>
    client.expect(200, "POST", `/sandboxes/${id}/exec`, { command: "/bin/true", mode: "argv" });
  for (let index = 0; index < warmup; index++) await exec();
  const began: number[] = [];
  const events = await traceOf(async () => {
    for (let index = 0; index < traced; index++) {
      began.push(Number(process.hrtime.bigint()) / 1_000);
      await exec();
    }
  });
  client.close();
  const threads = { client: process.pid, service: service.pid };
  const whole = began.flatMap((us, index) => {
    const until = began[index + 1] ?? Number.POSITIVE_INFINITY;
    return hopsOf(
      events.filter((event) => event.us >= us && event.us < until),
      us,
      { ...threads },
    );
  });
  if (whole.length === 0)
    throw new Error(
      `of ${traced} commands none woke each process in turn: ${events.length} events were traced`,
    );
  const rows = hops.map(({ what }, at) => {
    const { p50 } = summarize(whole.map((each) => each[at] ?? Number.NaN));
    return row(what, `${p50.toFixed(0)} µs`, { p50 });
  });
  const ours = whole.map((each) =>
    each.reduce((sum, us, at) => sum + (floorHops.has(hops[at]?.what ?? "") ? 0 : us), 0),
  );
  const { p50 } = summarize(ours);
  const seen = `${whole.length} of ${traced} commands`;
  return [...rows, row("all but the command's own", `${p50.toFixed(0)} µs, ${seen}`, { p50 })];
}

function row(what: string, figure: string, data: Record<string, number>): Row {
  return { what: `exec, hop: ${what}`, figure, floor: "-", budget: "-", met: undefined, data };
}

/** @returns one list of microseconds, or none when a hop was no wake-up. */
function hopsOf(events: readonly Event[], beganUs: number, known: Threads): number[][] {
  const taken: number[] = [];
  let last = beganUs;
  let at = 0;
  for (const { ends } of hops) {
    while (at < events.length && !ends(events[at] as Event, known)) at++;
    const found = events[at++];
    if (found === undefined) return [];
    taken.push(found.us - last);
    last = found.us;
  }
  return [taken];
}

async function traceOf(work: () => Promise<void>): Promise<Event[]> {
  const folder = await mkdtemp(path.join(tmpdir(), "alcove-hops-"));
  try {
    const file = path.join(folder, "perf.data");
    const args = ["record", "-q", "-a", "-k", "CLOCK_MONOTONIC", "-m", "4096", "-o", file];
    const perf = spawn("perf", [...args, ...traces.flatMap((name) => ["-e", name])], { stdio: "ignore" });
    const ended = once(perf, "exit");
    await delay(settleMs);
    await work();
    perf.kill("SIGINT");
    await ended;
    const { stdout } = await promisify(execFile)(
      "perf",
      ["script", "-i", file, "--ns", "-F", "comm,tid,time,event,trace"],
      { maxBuffer: 1 << 30 },
    );
    return stdout.split("\n").flatMap(eventOf);
  } finally {
    await rm(folder, { recursive: true, force: true });
  }
}

function eventOf(line: string): Event[] {
  const found = /^\s*.+?\s+(\d+)\s+(\d+\.\d+):\s+(\S+):\s+(.*)$/.exec(line);
  if (found === null) return [];
  const [, thread, seconds, name = "", text = ""] = found;
  return [{ thread: Number(thread), us: Number(seconds) * 1_000_000, name, text }];
}
