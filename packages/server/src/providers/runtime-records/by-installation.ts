import { readdir, readFile } from "node:fs/promises";
import { join } from "node:path";
import { Value } from "typebox/value";
import { boundedParallel } from "../../platform/bounded-parallel.ts";
import { WrittenNote } from "./sandbox-note.ts";

/** What an installation has below a data directory. */
export interface RuntimesOfInstallation {
  /** Whose first process lives. */
  living: number;
  /** Whose record names no process: an engine knows whether their containers run. */
  contained: number;
  /** The highest number of each run of the service that their records name. */
  lastBirths: Map<string, number>;
}

const parallelReads = 64;

/** Whose runtimes the records below a data directory are, by the id of the installation. Ended ones are not counted. */
export async function runtimesByInstallation(dataDir: string): Promise<Map<string, RuntimesOfInstallation>> {
  const found = new Map<string, RuntimesOfInstallation>();
  const root = join(dataDir, "runtimes");
  const folders: string[] = [];
  for (const provider of await namesIn(root)) {
    for (const name of await namesIn(join(root, provider)))
      if (!name.startsWith(".")) folders.push(join(root, provider, name));
  }
  const bootId = (await textOf("/proc/sys/kernel/random/boot_id"))?.trim();
  await boundedParallel(folders, parallelReads, async (folder) => {
    const record = await objectIn(join(folder, "runtime.json"));
    if (typeof record?.instanceId !== "string") return;
    const process = (await objectIn(join(folder, "process.json"))) ?? asObject(record.process);
    const state = process === undefined ? unnamed(folder) : await stateOf(process, bootId);
    if (state === "ended") return;
    const runtimes = found.get(record.instanceId) ?? { living: 0, contained: 0, lastBirths: new Map() };
    runtimes[state] += 1;
    found.set(record.instanceId, runtimes);
    const birth = Value.Check(WrittenNote, record.sandbox) ? record.sandbox.birth : undefined;
    if (birth !== undefined)
      runtimes.lastBirths.set(birth.run, Math.max(birth.number, runtimes.lastBirths.get(birth.run) ?? 0));
  });
  return found;
}

/** `docker` writes no process down; elsewhere there is none yet. */
function unnamed(folder: string): "contained" | "ended" {
  return folder.split("/").at(-2) === "docker" ? "contained" : "ended";
}

/** Both ways in which providers write down who the first process is. */
async function stateOf(
  process: Record<string, unknown>,
  bootId: string | undefined,
): Promise<"living" | "ended"> {
  if ((process.boot_id ?? process.bootId) !== bootId) return "ended";
  const stat = await textOf(`/proc/${Number(process.pid)}/stat`);
  // Behind the name, which may hold blanks and brackets: the state is the first field, the start time the twentieth.
  const fields = stat?.slice(stat.lastIndexOf(")") + 2).split(" ") ?? [];
  const same = fields[19] === String(process.start_time ?? process.startTime);
  return same && fields[0] !== "Z" && fields[0] !== "X" ? "living" : "ended";
}

async function objectIn(path: string): Promise<Record<string, unknown> | undefined> {
  const text = await textOf(path);
  if (text === undefined) return undefined;
  try {
    return asObject(JSON.parse(text));
  } catch {
    // Damaged: the provider tells of it.
    return undefined;
  }
}

function asObject(value: unknown): Record<string, unknown> | undefined {
  return typeof value === "object" && value !== null ? { ...value } : undefined;
}

function namesIn(folder: string): Promise<string[]> {
  return readdir(folder).catch(() => []);
}

function textOf(path: string): Promise<string | undefined> {
  return readFile(path, "utf8").catch(() => undefined);
}
