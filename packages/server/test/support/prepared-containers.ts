import { readdir } from "node:fs/promises";
import { join } from "node:path";
import { expect } from "vitest";
import { type Logger, silentLogger } from "../../src/platform/logger.ts";
import type { TestEngine } from "./docker-engine.ts";
import { mustRun } from "./programs.ts";

/** Names of an installation's containers, without what all of them begin with; whether they run by name. */
export async function containersOf(engine: TestEngine, instanceId: string): Promise<Map<string, boolean>> {
  const label = `label=alcove.instance=${instanceId}`;
  const format = "{{.Names}} {{.State}}";
  const { stdout } = await mustRun("docker", [
    "-H",
    engine.socket,
    "ps",
    "-a",
    "--filter",
    label,
    "--format",
    format,
  ]);
  const lines = stdout.trim().split("\n").filter(Boolean);
  return new Map(
    lines.map((line) => {
      const [name = "", state] = line.split(" ");
      return [name.split("-").slice(2).join("-"), state === "running"];
    }),
  );
}

export async function preparedNames(engine: TestEngine, instanceId: string): Promise<string[]> {
  return [...(await containersOf(engine, instanceId)).keys()].filter((name) => name.startsWith("prepared-"));
}

/** Folders of those that are nobody's. */
export async function preparedFolders(dataDir: string): Promise<string[]> {
  const names = await readdir(join(dataDir, "runtimes/docker")).catch(() => []);
  return names.filter((name) => name.startsWith("prepared-"));
}

/** Sees what a provider prepares by what it says to its log. */
export function watchPrepared(): {
  logger: Logger;
  /** What was said at level info or above. */
  said: string[];
  /** Of that, the messages of the errors. */
  why: string[];
  /** Those that are ready to be claimed. */
  waiting(engine: TestEngine, instanceId: string): Promise<string[]>;
  /** Until so many are ready to be claimed. */
  until(engine: TestEngine, instanceId: string, count: number): Promise<string[]>;
} {
  const ready = new Set<string>();
  const said: string[] = [];
  const why: string[] = [];
  const listen = (told: unknown, message?: string) => {
    if (message === "a container was prepared") ready.add((told as { container: string }).container);
    return undefined;
  };
  const say = (told: unknown, message?: string) => {
    said.push(message ?? "");
    const { err } = told as { err?: unknown };
    if (err instanceof Error) why.push(err.message);
  };
  const logger: Logger = Object.assign(Object.create(silentLogger) as Logger, {
    debug: listen,
    info: say,
    warn: say,
    error: say,
    child: () => logger,
  });
  const waiting = async (engine: TestEngine, instanceId: string) =>
    [...(await containersOf(engine, instanceId))]
      .filter(([name, runs]) => ready.has(name) && runs && name.startsWith("prepared-"))
      .map(([name]) => name);
  return {
    logger,
    said,
    why,
    waiting,
    until: async (engine, instanceId, count) => {
      await expect
        .poll(async () => (await waiting(engine, instanceId)).length, { timeout: 40_000 })
        .toBe(count);
      return waiting(engine, instanceId);
    },
  };
}
