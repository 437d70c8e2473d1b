import type { CallOptions, RuntimeStats } from "../../ports/index.ts";
import type { AgentClient } from "../agent/index.ts";
import type { EngineClient } from "./engine-client.ts";
import { asProviderError } from "./engine-errors.ts";
import { ContainerStats } from "./engine-shapes.ts";

const nanosecondsPerMs = 1_000_000;
/** The kernel's figures of "no limit", rounded down: what is above them is none. */
const unlimitedBytes = 2 ** 62;

/** What a sandbox uses: processor, memory and processes as the engine's cgroup counts them, the disk as the agent sees it. */
export async function runtimeStats(
  { engine, container, client }: { engine: EngineClient; container: string; client: AgentClient },
  options: CallOptions,
): Promise<RuntimeStats> {
  const [inside, outside] = await Promise.all([
    client.stats(options),
    engine
      .call(
        {
          method: "GET",
          path: `/containers/${container}/stats`,
          query: { stream: "false", "one-shot": "true" },
          ...options,
        },
        ContainerStats,
      )
      .catch((error) => {
        throw asProviderError("count a container's resources", error);
      }),
  ]);
  return { ...inside, ...fromEngine(outside) };
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
  if (stats.pids_stats?.current !== undefined) result.pids = stats.pids_stats.current;
  if (stats.pids_stats?.limit !== undefined && stats.pids_stats.limit < Number.MAX_SAFE_INTEGER) {
    result.pidsLimit = stats.pids_stats.limit;
  }
  return result;
}
