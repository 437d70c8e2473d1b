import { execFile } from "node:child_process";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import path from "node:path";
import { promisify } from "node:util";
import type { Row } from "../row.ts";
import { projectRoot, startService } from "../service.ts";
import { ms, summarize, timeEach } from "../stats.ts";

const run = promisify(execFile);
const alcove = path.join(projectRoot, "bin/alcove");

/** How long a user waits for `alcove exec` and `alcove spawn`, from the shell's start of them to their end. */
export async function commandLine(): Promise<Row[]> {
  await using service = await startService({ ALCOVE_PROVIDERS_DEFAULT: "native" });
  // Nothing of the caller's own configuration.
  const home = await mkdtemp(path.join(tmpdir(), "alcove-bench-home-"));
  const env = { PATH: process.env.PATH, HOME: home, ALCOVE_URL: service.url };
  const command = async (...args: string[]) => (await run(alcove, args, { env })).stdout.trim();
  const times = async (work: () => Promise<unknown>) =>
    summarize(await timeEach({ count: 20, warmup: 3 }, work));
  const node = await times(() => run(process.execPath, ["-e", "0"]));
  const id = await command("spawn", "--ttl", "10m");
  const exec = await times(() => command("exec", id, "true"));
  const spawn = await times(() => command("spawn", "--ttl", "10m"));
  await rm(home, { recursive: true, force: true });
  return [
    {
      what: "command line: alcove exec of true, alcove spawn",
      figure: `p50 ${ms(exec.p50)} and ${ms(spawn.p50)}`,
      floor: `node -e 0 p50 ${ms(node.p50)}`,
      budget: "none",
      met: undefined,
      data: { exec: exec.p50, spawn: spawn.p50, floor: node.p50 },
    },
  ];
}
