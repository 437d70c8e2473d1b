/**
 * `npm run soak [-- --minutes N]`: spawns, commands, files, streams and destroys on native for half an hour, and fails when what the
 * service holds grows: memory, descriptors, processes, mounts, directories, control groups. docs/performance.md.
 */
import { readdir, readFile } from "node:fs/promises";
import path from "node:path";
import { setTimeout as delay } from "node:timers/promises";
import { argumentsOf, refuse } from "../scripts/arguments.ts";
import { buildWhatIsMeasured } from "./built.ts";
import { growth, type Held, neverSeen } from "./growth.ts";
import { HttpClient } from "./http-client.ts";
import { projectRoot, rssOf, startService } from "./service.ts";
import { summarize } from "./stats.ts";

const clients = 4;
const quarters = 4;
/** Beyond so many nothing more is learned. */
const mostFailures = 20;
/** What is being made or ended while it is counted. */
const countSlack = 4 * clients;

const { values } = argumentsOf("soak", "npm run soak -- [--minutes 30]", {
  options: { minutes: { type: "string", default: "30" } },
});
const minutes = Number(values.minutes);
if (!(minutes > 0)) refuse("soak", `--minutes ${values.minutes} is no time; such as 30, or 0.5`);
await buildWhatIsMeasured("soak");
process.exit((await soak(minutes * 60_000)) ? 0 : 1);

async function soak(durationMs: number): Promise<boolean> {
  const collector = ["--expose-gc", "--import", path.join(projectRoot, "bench/collect.mjs")];
  await using service = await startService({ ALCOVE_PROVIDERS_DEFAULT: "native" }, { nodeFlags: collector });
  const until = performance.now() + durationMs;
  const done = { rounds: 0, failures: [] as string[] };
  const looks: Held[][] = [];
  let grouped = false;
  const load = Array.from({ length: clients }, (_, index) => oneClient(service.url, index, until, done));
  for (let quarter = 0; quarter < quarters; quarter++) {
    const found: Held[] = [];
    const ends = until - (durationMs * (quarters - 1 - quarter)) / quarters;
    // Not at the very end, where clients leave.
    while (performance.now() < ends - 500) {
      found.push(await heldBy(service));
      grouped ||= await haveGroups(service.dataDir);
      await delay(Math.min(5_000, durationMs / 40));
    }
    looks.push(found);
    console.error(`soak: quarter ${quarter + 1}: ${done.rounds} rounds, ${told(mediansOf(found))}`);
  }
  await Promise.all(load);
  for (const failure of done.failures.slice(0, 5)) console.error(`soak: ${failure}`);
  const grown = growth(mediansOf(looks[1] ?? []), mediansOf(looks.at(-1) ?? []), { countSlack });
  for (const what of grown) console.error(`soak: ${what}`);
  const unseen = neverSeen(looks.flat(), { grouped });
  for (const what of unseen) console.error(`soak: no ${what} seen at any time, though there were sandboxes`);
  await settled(service);
  const left = await heldBy(service);
  const leftovers = left.directories > 0 || left.groups > 0;
  if (leftovers) console.error(`soak: left when everything was destroyed: ${told(left)}`);
  const well =
    grown.length === 0 && unseen.length === 0 && done.failures.length === 0 && !leftovers && done.rounds > 0;
  console.log(`soak: ${done.rounds} rounds in ${minutes} min, ${well ? "nothing grew" : "FAILED"}`);
  return well;
}

/** Makes a sandbox, uses it in every way, and destroys it, again and again. */
async function oneClient(
  url: string,
  index: number,
  until: number,
  done: { rounds: number; failures: string[] },
): Promise<void> {
  const client = new HttpClient({ url, key: undefined });
  while (performance.now() < until && done.failures.length < mostFailures) {
    let at: string | undefined;
    try {
      const { id } = await client.json<{ id: string }>("POST", "/sandboxes", { ttl: "5m" });
      at = `/sandboxes/${id}`;
      await use(client, at, `${index} `.repeat(20_000 * ((done.rounds % 4) + 1)));
      done.rounds++;
    } catch (error) {
      done.failures.push(String(error));
    } finally {
      if (at !== undefined)
        await client.call("DELETE", at).catch((error) => done.failures.push(String(error)));
    }
  }
  client.close();
}

async function use(client: HttpClient, at: string, content: string): Promise<void> {
  await client.call("POST", `${at}/files`, { path: "/workspace/a", content });
  const { stdout } = await client.json<{ stdout: string }>("POST", `${at}/exec`, {
    command: "wc -c < /workspace/a; (sleep 100 &) ; ls /usr/bin | wc -l",
  });
  if (Number(stdout.split("\n")[0]) !== content.length) throw new Error(`a file came out as ${stdout}`);
  await client.call("POST", `${at}/execs`, { command: "yes | head -c 200000; sleep 100" });
  await client.call("POST", `${at}/exec`, { command: "seq 20000", stream: true, timeout: "20s" });
  const { bytes } = await client.call("GET", `${at}/files?path=/workspace/a`);
  if (bytes !== content.length) throw new Error(`a file of ${content.length} bytes came out with ${bytes}`);
  await client.call("POST", `${at}/extend`, { ttl: "6m" });
}

/** @returns what the service holds now; of processes, those of its sandboxes. */
async function heldBy({ pid, dataDir }: { pid: number; dataDir: string }): Promise<Held> {
  const installation = JSON.parse(await readFile(path.join(dataDir, "installation.json"), "utf8"));
  const runtimes = await readdir(path.join(dataDir, "runtimes", "native")).catch(() => []);
  // Those that are made ahead are nobody's, and as many as are configured whatever goes on.
  const waiting = runtimes.filter((name) => name.startsWith("prepared-"));
  const all = await groupsOf(`alcove-${String(installation.id).slice(0, 12)}`);
  const groups = all.filter((group) => !waiting.some((name) => group.split(path.sep).includes(name)));
  const members = await Promise.all(groups.map((group) => linesOf(path.join(group, "cgroup.procs"))));
  return {
    memory: await rssOf(pid),
    descriptors: (await readdir(`/proc/${pid}/fd`)).length,
    mounts: (await linesOf(`/proc/${pid}/mountinfo`)).length,
    processes: new Set(members.flat()).size,
    directories: runtimes.filter((name) => !name.startsWith(".") && !waiting.includes(name)).length,
    groups: groups.length,
  };
}

/** Whether the service gave its sandboxes control groups, wherever these are. */
async function haveGroups(dataDir: string): Promise<boolean> {
  const folder = path.join(dataDir, "runtimes", "native");
  for (const name of await readdir(folder).catch(() => [])) {
    const record = await readFile(path.join(folder, name, "runtime.json"), "utf8").catch(() => "");
    if (/"cgroup": ?\{/.test(record)) return true;
  }
  return false;
}

/** Of the sandboxes, in one of the trees that each of them is in. */
async function groupsOf(installation: string): Promise<string[]> {
  for (const tree of ["/sys/fs/cgroup/pids", "/sys/fs/cgroup"]) {
    const top = path.join(tree, installation);
    const names = await readdir(top, { recursive: true, withFileTypes: true }).catch(() => undefined);
    if (names === undefined) continue;
    return names
      .filter((entry) => entry.isDirectory())
      .map((entry) => path.join(entry.parentPath, entry.name));
  }
  return [];
}

/** What is gone meanwhile has none. */
async function linesOf(file: string): Promise<string[]> {
  const text = await readFile(file, "utf8").catch(() => "");
  return text.split("\n").filter((line) => line !== "");
}

/** Waits a while for ends that are under way. */
async function settled(service: { pid: number; dataDir: string }): Promise<void> {
  const until = performance.now() + 15_000;
  while (performance.now() < until) {
    const { directories, groups } = await heldBy(service);
    if (directories === 0 && groups === 0) return;
    await delay(200);
  }
}

function mediansOf(looks: readonly Held[]): Held {
  const of = (what: keyof Held) => summarize(looks.map((look) => look[what])).p50;
  return {
    memory: of("memory"),
    descriptors: of("descriptors"),
    processes: of("processes"),
    mounts: of("mounts"),
    directories: of("directories"),
    groups: of("groups"),
  };
}

function told({ memory, ...counts }: Held): string {
  const others = Object.entries(counts).map(([what, count]) => `${count} ${what}`);
  return [`${Math.round(memory / 1_048_576)} MiB`, ...others].join(", ");
}
