import { execFile } from "node:child_process";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import path from "node:path";
import { promisify } from "node:util";
import { HttpClient } from "../http-client.ts";
import type { Row } from "../row.ts";
import { projectRoot, startService } from "../service.ts";
import { ms, summarize } from "../stats.ts";

const run = promisify(execFile);
const alcove = path.join(projectRoot, "bin/alcove");
const rounds = 25;
const warmup = 3;

/** How long a user waits for a command, from the shell's start of it to its end, in turns with a Node that does nothing. */
export async function commandLine(): Promise<Row[]> {
  await using service = await startService({ ALCOVE_PROVIDERS_DEFAULT: "native" });
  // Nothing of the caller's own configuration.
  const home = await mkdtemp(path.join(tmpdir(), "alcove-bench-home-"));
  const env = { PATH: process.env.PATH, HOME: home, ALCOVE_URL: service.url };
  const command = async (...args: string[]) => (await run(alcove, args, { env })).stdout.trim();
  const client = new HttpClient({ url: service.url, key: undefined });
  const spawned = { ttl: "10m" };
  const id = await command("spawn", "--ttl", spawned.ttl);
  const works = {
    node: () => run(process.execPath, ["-e", "0"]),
    exec: () => command("exec", id, "true"),
    spawn: () => command("spawn", "--ttl", spawned.ttl),
    list: () => command("ls"),
    // What the service itself takes of the two, which no command line can be faster than.
    "service's spawn": () => client.call("POST", "/sandboxes", spawned),
    "service's list": () => client.call("GET", "/sandboxes"),
  };
  const samples = new Map(Object.keys(works).map((name): [string, number[]] => [name, []]));
  for (let round = -warmup; round < rounds; round++) {
    for (const [name, work] of Object.entries(works)) {
      const started = performance.now();
      await work();
      if (round >= 0) samples.get(name)?.push(performance.now() - started);
    }
  }
  client.close();
  await rm(home, { recursive: true, force: true });
  const p50 = (name: keyof typeof works) => summarize(samples.get(name) ?? []).p50;
  const floor = p50("node");
  const row = (what: string, of: { time: number; factor: number; service: number }): Row => ({
    what: `command line: ${what}`,
    figure: `p50 ${ms(of.time)} (${(of.time / floor).toFixed(2)} ×)`,
    floor: `node -e 0 p50 ${ms(floor)}${of.service === 0 ? "" : `, the service's part ${ms(of.service)}`}`,
    budget: `≤ ${of.factor} × ${of.service === 0 ? "" : "and the service's part"}`.trim(),
    met: of.time <= of.factor * floor + of.service,
    data: { p50: of.time, floor, service: of.service },
  });
  return [
    row("alcove exec of true", { time: p50("exec"), factor: 2.2, service: 0 }),
    row("alcove spawn", { time: p50("spawn"), factor: 2, service: p50("service's spawn") }),
    row("alcove ls", { time: p50("list"), factor: 2, service: p50("service's list") }),
  ];
}
