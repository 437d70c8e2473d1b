import type { CallOptions, RuntimeStats } from "../../ports/index.ts";
import type { AgentClient } from "../agent/index.ts";
import { answeredSoon } from "./answered-soon.ts";
import type { EngineClient } from "./engine-client.ts";
import { asProviderError } from "./engine-errors.ts";
import { ContainerStats } from "./engine-shapes.ts";

const nanosecondsPerMs = 1_000_000;
/** The kernel's figures of "no limit", rounded down: what is above them is none. */
const unlimitedBytes = 2 ** 62;

/**
 * What a sandbox uses: processor, memory and processes as the engine's cgroup counts them, what it does not count as the
 * agent sees it. The disk is left out: what the agent sees of it is the engine's, with everybody's files on it.
 * @throws Unavailable when the engine, or the agent, does not answer in time.
 */
export async function runtimeStats(
  { engine, container, client }: { engine: EngineClient; container: string; client: AgentClient },
  options: CallOptions,
): Promise<RuntimeStats> {
  const action = "count a container's resources";
  const [inside, outside] = await answeredSoon(action, options, (soon) =>
    Promise.all([
      client.stats(soon),
      engine
        .call(
          {
            method: "GET",
            path: `/containers/${container}/stats`,
            query: { stream: "false", "one-shot": "true" },
            ...soon,
          },
          ContainerStats,
        )
        .catch((error) => {
          throw asProviderError(action, error);
        }),
    ]),
  );
  const { diskBytes: _used, diskLimitBytes: _size, ...own } = inside;
  return { ...own, ...fromEngine(outside) };
}

function fromEngine(stats: ContainerStats): RuntimeStats {
  const result: RuntimeStats = {};
  const cpu = stats.cpu_stats?.cpu_usage?.total_usage;
  if (cpu !== undefined) result.cpuUsageMs = Math.round(cpu / nanosecondsPerMs);
  const memory = stats.memory_stats;
  if (memory?.usage !== undefined) {
    // Cached file contents that the kernel would give back at once are nobody's use of memory. cgroup v1, then v2.
    const cached = memory.stats?.total_inactive_file ?? memory.stats?.inactive_file ?? 0;
    result.memoryBytes = Math.max(memory.usage - cached, 0);
  }
  if (memory?.limit !== undefined && memory.limit < unlimitedBytes) result.memoryLimitBytes = memory.limit;
  // 0, where nothing is counted: a sandbox that runs has a process.
  const { current = 0, limit = 0 } = stats.pids_stats ?? {};
  if (current > 0) result.pids = current;
  if (limit > 0 && limit < Number.MAX_SAFE_INTEGER) result.pidsLimit = limit;
  return result;
}
