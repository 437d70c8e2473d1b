/** What one owner may have beyond or below the defaults; 0 in a field: as the defaults say. */
export interface QuotaRow {
  ownerId: string;
  maxSandboxes: number;
  maxTtlMs: number;
  maxExecTimeoutMs: number;
  maxMemoryMb: number;
  maxVcpus: number;
  createdAt: Date;
  updatedAt: Date;
}

/** How many quotas there are, and how many set which limit. */
export interface QuotaSummary {
  total: number;
  withMaxSandboxes: number;
  withMaxTtl: number;
  withMaxExecTimeout: number;
}

export interface QuotaStore {
  /** Makes or replaces an owner's quota; the time of making stays. @returns what is kept now. */
  save(quota: QuotaRow): Promise<QuotaRow>;
  get(ownerId: string): Promise<QuotaRow | undefined>;
  /** By owner id, in the order of its bytes. @param page.afterOwnerId empty: from the first. */
  list(page: { afterOwnerId: string; limit: number }): Promise<QuotaRow[]>;
  summary(): Promise<QuotaSummary>;
  /** @returns whether there was one. */
  remove(ownerId: string): Promise<boolean>;
}
