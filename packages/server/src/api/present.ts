import type {
  ExecRecord,
  ExecResult,
  FileInfo,
  ProviderHealth,
  Sandbox,
  SandboxStats,
  SnapshotSummary,
} from "@alcove/wire";
import type { ExecOutcome } from "../core/exec/buffered-exec.ts";
import { formatMode } from "../core/files/paths.ts";
import type { ProviderHealthEntry } from "../core/providers/provider-registry.ts";
import type { ProviderSnapshot } from "../core/providers/snapshots.ts";
import { commandBeginning, listedCommandLength } from "../ports/command-beginning.ts";
import type { ExecInfo, FileEntry, RuntimeStats } from "../ports/sandbox-operations.ts";
import type { ListedSandbox } from "../ports/store.ts";
import { defined, given, type Total } from "./parse.ts";
import { exitFields } from "./streams/output-text.ts";

export function presentSandbox(row: ListedSandbox, options: { previewDomain: string }): Sandbox {
  return defined<Total<Sandbox>>({
    id: row.id,
    name: row.name ?? undefined,
    state: row.state,
    provider: row.provider,
    image: row.image,
    image_resolved: row.imageResolved === row.image ? undefined : (row.imageResolved ?? undefined),
    memory_mb: row.memoryMb,
    vcpus: row.vcpus,
    created_at: row.createdAt.toISOString(),
    expires_at: row.expiresAt.toISOString(),
    metadata: row.metadata,
    preview_domain: options.previewDomain,
    owner_id: given(row.ownerId),
    worker_id: row.workerId,
    error: row.error ?? undefined,
  });
}

/** A result whose output is yet to be spelled out. */
export type PresentedOutcome = Omit<ExecResult, "stdout" | "stderr"> & Pick<ExecOutcome, "stdout" | "stderr">;

export function presentOutcome(outcome: ExecOutcome): PresentedOutcome {
  return {
    ...exitFields(outcome.exit),
    stdout: outcome.stdout,
    stderr: outcome.stderr,
    exec_id: outcome.execId,
    ...(outcome.truncated ? { truncated: true } : {}),
    ...(outcome.lostBytes > 0 ? { lost_bytes: outcome.lostBytes } : {}),
    ...(outcome.encoding === "base64" ? { encoding: outcome.encoding } : {}),
  };
}

export function presentExec(info: ExecInfo): ExecRecord {
  const { exit } = info;
  return {
    exec_id: info.execId,
    pid: info.pid,
    state: exit === undefined ? "running" : "exited",
    command: info.command,
    args: [...info.args],
    tty: info.tty,
    ...(info.tag === undefined ? {} : { tag: info.tag }),
    started_at: info.startedAt.toISOString(),
    output_bytes: info.outputBytes,
    first_offset: info.firstOffset,
    ...(exit === undefined ? {} : { ended_at: exit.endedAt.toISOString(), ...exitFields(exit) }),
  };
}

/** In a list, which may be of thousands: of a long command line the beginning. */
export function presentListedExec(info: ExecInfo): ExecRecord {
  return { ...presentExec(info), ...commandBeginning(info, listedCommandLength) };
}

const earliestMs = Date.parse("0001-01-01T00:00:00.000Z");
const latestMs = Date.parse("9999-12-31T23:59:59.999Z");

/** Files have any time, and backends say any; what no timestamp can tell becomes the nearest that one can, and what is none the first. */
export function tellableTime(time: Date): Date {
  return new Date(Math.min(Math.max(time.getTime() || 0, earliestMs), latestMs));
}

export function presentFile(entry: FileEntry): FileInfo {
  return {
    name: entry.name,
    path: entry.path,
    size: entry.size,
    is_dir: entry.type === "dir",
    mod_time: tellableTime(entry.modifiedAt).toISOString(),
    mode: formatMode(entry.mode),
    type: entry.type,
    uid: entry.uid,
    gid: entry.gid,
    ...(entry.symlinkTarget === undefined ? {} : { symlink_target: entry.symlinkTarget }),
  };
}

export function presentHealth(entry: ProviderHealthEntry): ProviderHealth {
  return defined<Total<ProviderHealth>>({
    name: entry.name,
    healthy: entry.healthy,
    default: entry.default,
    latency_ms: Math.round(entry.latencyMs),
    last_checked: entry.lastChecked.toISOString(),
    error: entry.error,
    // They name users and paths of the machine: for who may ask for providers.
    notes: undefined,
    capabilities: [...entry.capabilities],
    runtime_count: entry.runtimeCount,
  });
}

export function presentSnapshot(snapshot: ProviderSnapshot): SnapshotSummary {
  return defined<Total<SnapshotSummary>>({
    image: snapshot.image,
    kernel: snapshot.kernel,
    size_bytes: snapshot.sizeBytes,
    created_at: snapshot.createdAt.toISOString(),
    provider: snapshot.provider,
  });
}

export function presentStats(stats: RuntimeStats, commands: number): SandboxStats {
  // What counts in a sandbox may be a program of its own, and say what is no number.
  const whole = (value = Number.NaN) => (Number.isFinite(value) ? Math.max(0, Math.round(value)) : undefined);
  return defined<Total<SandboxStats>>({
    cpu_usage_ms: whole(stats.cpuUsageMs),
    memory_bytes: whole(stats.memoryBytes),
    memory_limit_bytes: whole(stats.memoryLimitBytes),
    pids: whole(stats.pids),
    pids_limit: whole(stats.pidsLimit),
    disk_bytes: whole(stats.diskBytes),
    disk_limit_bytes: whole(stats.diskLimitBytes),
    commands,
  });
}
