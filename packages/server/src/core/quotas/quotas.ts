import {
  BadRequest,
  type CapacityInUse,
  type Clock,
  type EventSink,
  NotFound,
  type QuotaRow,
  type QuotaSummary,
  type Store,
} from "../../ports/index.ts";
import { parseOwnerId } from "../owners.ts";
import type { Limits, OwnerLimits, QuotaLookup } from "./limits.ts";

/** What a client wants an owner to have; what it left out inherits. */
export interface QuotaInput {
  maxSandboxes?: number;
  maxTtlMs?: number;
  maxExecTimeoutMs?: number;
  maxMemoryMb?: number;
  maxVcpus?: number;
}

export interface OwnerUsage {
  ownerId: string;
  inUse: CapacityInUse;
  limits: OwnerLimits;
  configured: boolean;
}

/** Owner ids that would be taken for another path. */
const reservedOwners: readonly string[] = ["summary"];
const loadPage = 1_000;
const mostOfAnything = 1_000_000_000;

/**
 * Owner quotas. The store is the truth, and what a reservation reads; the copy in memory answers what is asked for every
 * command and extension. docs/api/quotas.md.
 */
export class Quotas implements QuotaLookup {
  readonly #store: Store;
  readonly #clock: Clock;
  readonly #events: EventSink;
  readonly #byOwner = new Map<string, QuotaRow>();
  readonly #counts = { total: 0, withMaxSandboxes: 0, withMaxTtl: 0, withMaxExecTimeout: 0 };
  readonly #listeners = new Set<() => void>();

  private constructor(options: { store: Store; clock: Clock; events: EventSink }) {
    this.#store = options.store;
    this.#clock = options.clock;
    this.#events = options.events;
  }

  static async open(options: { store: Store; clock: Clock; events: EventSink }): Promise<Quotas> {
    const quotas = new Quotas(options);
    for (let afterOwnerId = ""; ; ) {
      const page = await options.store.quotas.list({ afterOwnerId, limit: loadPage });
      for (const row of page) quotas.#keep(row);
      const last = page.at(-1);
      if (last === undefined || page.length < loadPage) return quotas;
      afterOwnerId = last.ownerId;
    }
  }

  of(ownerId: string): QuotaRow | undefined {
    return this.#byOwner.get(ownerId);
  }

  /** As `summary`, from memory: at the same cost however many there are. */
  get counts(): QuotaSummary {
    return { ...this.#counts };
  }

  /** Calls back whenever a quota was saved or deleted: spawns that wait may fit now. */
  onChange(listener: () => void): void {
    this.#listeners.add(listener);
  }

  /** Replaces whatever the owner had. @throws BadRequest naming the owner or the field. */
  async save(owner: string, input: QuotaInput): Promise<QuotaRow> {
    const ownerId = checkedOwner(owner);
    const now = this.#clock.now();
    const saved = await this.#store.quotas.save({
      ownerId,
      maxSandboxes: checkedCount("max_sandboxes", input.maxSandboxes),
      maxTtlMs: checkedDuration("max_ttl", input.maxTtlMs),
      maxExecTimeoutMs: checkedDuration("max_exec_timeout", input.maxExecTimeoutMs),
      maxMemoryMb: checkedCount("max_memory_mb", input.maxMemoryMb),
      maxVcpus: checkedCount("max_vcpus", input.maxVcpus),
      createdAt: now,
      updatedAt: now,
    });
    this.#keep(saved);
    this.#changed("quota.saved", ownerId);
    return saved;
  }

  /** @throws NotFound when the owner has none. */
  async get(owner: string): Promise<QuotaRow> {
    const ownerId = checkedOwner(owner);
    const row = await this.#store.quotas.get(ownerId);
    if (row === undefined) throw quotaNotFound(ownerId);
    return row;
  }

  list(page: { afterOwnerId: string; limit: number }): Promise<QuotaRow[]> {
    return this.#store.quotas.list(page);
  }

  summary(): Promise<QuotaSummary> {
    return this.#store.quotas.summary();
  }

  /** @throws NotFound when the owner has none. */
  async remove(owner: string): Promise<void> {
    const ownerId = checkedOwner(owner);
    if (!(await this.#store.quotas.remove(ownerId))) throw quotaNotFound(ownerId);
    this.#forget(ownerId);
    this.#changed("quota.deleted", ownerId);
  }

  /** What an owner has and may have, with a quota or without. */
  async usage(owner: string, limits: Limits): Promise<OwnerUsage> {
    const ownerId = checkedOwner(owner);
    const [inUse, quota] = await Promise.all([
      this.#store.sandboxes.inUse(ownerId),
      this.#store.quotas.get(ownerId),
    ]);
    return { ownerId, inUse, limits: limits.of(ownerId, quota), configured: quota !== undefined };
  }

  #keep(row: QuotaRow): void {
    this.#forget(row.ownerId);
    this.#byOwner.set(row.ownerId, row);
    this.#count(row, 1);
  }

  #forget(ownerId: string): void {
    const row = this.#byOwner.get(ownerId);
    if (row === undefined) return;
    this.#byOwner.delete(ownerId);
    this.#count(row, -1);
  }

  #count(row: QuotaRow, by: 1 | -1): void {
    this.#counts.total += by;
    if (row.maxSandboxes > 0) this.#counts.withMaxSandboxes += by;
    if (row.maxTtlMs > 0) this.#counts.withMaxTtl += by;
    if (row.maxExecTimeoutMs > 0) this.#counts.withMaxExecTimeout += by;
  }

  #changed(type: "quota.saved" | "quota.deleted", ownerId: string): void {
    this.#events.emit({ type, sandboxId: "", ownerId, data: { owner_id: ownerId } });
    for (const listener of this.#listeners) listener();
  }
}

function checkedOwner(text: string): string {
  const ownerId = parseOwnerId(text);
  if (ownerId === "") throw new BadRequest("the owner id is empty; name the owner in the path");
  if (reservedOwners.includes(ownerId)) {
    throw new BadRequest(`owner id "${ownerId}" is the name of a path and cannot have a quota`);
  }
  return ownerId;
}

function checkedCount(field: string, value = 0): number {
  if (!Number.isInteger(value) || value < 0 || value > mostOfAnything) {
    throw new BadRequest(`${field} must be a whole number from 0 to ${mostOfAnything}, not ${value}`);
  }
  return value;
}

function checkedDuration(field: string, ms = 0): number {
  if (ms % 1_000 !== 0) {
    throw new BadRequest(`${field} must be whole seconds, such as 90s, not ${ms}ms; 0s inherits the default`);
  }
  return ms;
}

export function quotaNotFound(ownerId: string): NotFound {
  return new NotFound(`owner "${ownerId}" has no quota; PUT one, or see its usage for the defaults`, {
    what: "quota",
  });
}
