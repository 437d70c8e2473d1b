import type { SandboxState } from "@alcove/wire";
import type { RuntimeId, SandboxId } from "../../ports/ids.ts";
import type { ListedSandbox, SandboxChange, SandboxRow } from "../../ports/store.ts";

/** A row of the table `sandboxes` as SQLite gives it. */
export interface SandboxRecord {
  id: string;
  runtime_id: string;
  state: string;
  provider: string;
  worker_id: string;
  image: string;
  image_resolved: string | null;
  memory_mb: number;
  vcpus: number;
  owner_id: string;
  name: string | null;
  metadata: string;
  env: string;
  user: string | null;
  workdir: string | null;
  network: string | null;
  created_at: number;
  expires_at: number;
  ends_itself_at: number | null;
  updated_at: number;
  destroyed_at: number | null;
  destroy_requested: number;
  error: string | null;
  pool_vm: string | null;
  pool_uid: number | null;
}

/** Each column of a record, and no other: the compiler asks. */
const inRecord: Readonly<Record<keyof SandboxRecord, true>> = {
  id: true,
  runtime_id: true,
  state: true,
  provider: true,
  worker_id: true,
  image: true,
  image_resolved: true,
  memory_mb: true,
  vcpus: true,
  owner_id: true,
  name: true,
  metadata: true,
  env: true,
  user: true,
  workdir: true,
  network: true,
  created_at: true,
  expires_at: true,
  ends_itself_at: true,
  updated_at: true,
  destroyed_at: true,
  destroy_requested: true,
  error: true,
  pool_vm: true,
  pool_uid: true,
};
export const sandboxColumns = Object.keys(inRecord) as readonly (keyof SandboxRecord)[];

export function fromRecord(record: SandboxRecord): SandboxRow {
  return { ...listedFromRecord(record), env: JSON.parse(record.env) as Record<string, string> };
}

export function listedFromRecord(record: Omit<SandboxRecord, "env">): ListedSandbox {
  return {
    id: record.id as SandboxId,
    runtimeId: record.runtime_id as RuntimeId,
    state: record.state as SandboxState,
    provider: record.provider,
    workerId: record.worker_id,
    image: record.image,
    imageResolved: record.image_resolved,
    memoryMb: record.memory_mb,
    vcpus: record.vcpus,
    ownerId: record.owner_id,
    name: record.name,
    metadata: JSON.parse(record.metadata) as Record<string, string>,
    user: record.user,
    workdir: record.workdir,
    network: record.network,
    createdAt: new Date(record.created_at),
    expiresAt: new Date(record.expires_at),
    endsItselfAt: record.ends_itself_at === null ? null : new Date(record.ends_itself_at),
    updatedAt: new Date(record.updated_at),
    destroyedAt: record.destroyed_at === null ? null : new Date(record.destroyed_at),
    destroyRequested: record.destroy_requested !== 0,
    error: record.error,
    ...(record.pool_vm === null || record.pool_uid === null
      ? {}
      : { slot: { vmId: record.pool_vm, uid: record.pool_uid } }),
  };
}

export function toRecord(row: SandboxRow) {
  return {
    id: row.id,
    runtime_id: row.runtimeId,
    state: row.state,
    provider: row.provider,
    worker_id: row.workerId,
    image: row.image,
    image_resolved: row.imageResolved,
    memory_mb: row.memoryMb,
    vcpus: row.vcpus,
    owner_id: row.ownerId,
    name: row.name,
    metadata: JSON.stringify(row.metadata),
    env: JSON.stringify(row.env),
    user: row.user,
    workdir: row.workdir,
    network: row.network,
    created_at: row.createdAt.getTime(),
    expires_at: row.expiresAt.getTime(),
    ends_itself_at: row.endsItselfAt?.getTime() ?? null,
    updated_at: row.updatedAt.getTime(),
    destroyed_at: row.destroyedAt?.getTime() ?? null,
    destroy_requested: row.destroyRequested ? 1 : 0,
    error: row.error,
    pool_vm: row.slot?.vmId ?? null,
    pool_uid: row.slot?.uid ?? null,
  } satisfies SandboxRecord;
}

/** @returns the record with a change made to it. Field by field: a spread of what SQLite gives is a table as slow, and eight times as large. */
export function changed(record: SandboxRecord, change: SandboxChange): SandboxRecord {
  return {
    id: record.id,
    runtime_id: change.runtimeId ?? record.runtime_id,
    state: change.state ?? record.state,
    provider: record.provider,
    worker_id: record.worker_id,
    image: record.image,
    image_resolved: change.imageResolved ?? record.image_resolved,
    memory_mb: record.memory_mb,
    vcpus: record.vcpus,
    owner_id: record.owner_id,
    name: record.name,
    metadata: change.metadata === undefined ? record.metadata : JSON.stringify(change.metadata),
    env: change.env === undefined ? record.env : JSON.stringify(change.env),
    user: record.user,
    workdir: record.workdir,
    network: record.network,
    created_at: record.created_at,
    expires_at: change.expiresAt?.getTime() ?? record.expires_at,
    ends_itself_at: change.endsItselfAt?.getTime() ?? record.ends_itself_at,
    destroyed_at:
      change.destroyedAt === undefined ? record.destroyed_at : (change.destroyedAt?.getTime() ?? null),
    destroy_requested:
      change.destroyRequested === undefined ? record.destroy_requested : Number(change.destroyRequested),
    error: change.error === undefined ? record.error : change.error,
    updated_at: change.updatedAt.getTime(),
    pool_vm: record.pool_vm,
    pool_uid: record.pool_uid,
  };
}
