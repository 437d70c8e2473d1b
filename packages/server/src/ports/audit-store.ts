/** Who asked for what change, and what became of it. */
export interface AuditRow {
  /** Given by the store, counting up. */
  id: number;
  createdAt: Date;
  /** Name of the key, never the key; `anonymous` without one that is known. */
  actor: string;
  method: string;
  path: string;
  status: number;
  durationMs: number;
  requestId: string;
  remoteAddr: string;
  userAgent: string;
}

export interface AuditFilter {
  actor?: string;
  method?: string;
  status?: number;
  /** Part of the path. */
  path?: string;
  since?: Date;
  until?: Date;
  limit: number;
}

export interface AuditStore {
  /** Durable when it resolves. */
  append(entry: Omit<AuditRow, "id">): Promise<void>;
  /** Newest first. */
  list(filter: AuditFilter): Promise<AuditRow[]>;
  /** Forgets what is older than `before`, and what goes beyond the newest `keep`, in slices. @returns how many. */
  purge(which: { before: Date; keep: number; signal?: AbortSignal }): Promise<number>;
}
