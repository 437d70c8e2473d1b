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
  /** Older than this record. */
  beforeId?: number;
  limit: number;
}

export interface AuditSearch {
  signal?: AbortSignal;
  /** Waits for the turn in which the next slice may be looked at. */
  turn?: () => Promise<void>;
}

export interface AuditStore {
  /**
   * Durable when it resolves.
   * @param options.refused the call changed nothing: while the disk is nearly full it is not written.
   * @param options.ofStrangers it is a stranger's record; so many of those are kept, this one among them.
   * @throws StorageFull
   */
  append(entry: Omit<AuditRow, "id">, options?: { refused?: boolean; ofStrangers?: number }): Promise<void>;
  /** Newest first. A search may look at all there is, in slices. @throws the signal's reason. */
  list(filter: AuditFilter, options?: AuditSearch): Promise<AuditRow[]>;
  /**
   * Forgets, in slices, what is older than `before`, what strangers have beyond `ofStrangers`, and of the others the
   * oldest beyond `keep` records of all.
   * @returns how many.
   */
  purge(which: { before: Date; keep: number; ofStrangers?: number; signal?: AbortSignal }): Promise<number>;
}
