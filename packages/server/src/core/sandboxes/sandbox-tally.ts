import type { SandboxState } from "@alcove/wire";
import type { SandboxRow } from "../../ports/index.ts";

type Tallied = Pick<SandboxRow, "workerId" | "provider" | "state">;

export interface SandboxCounts {
  /** Without destroyed ones. */
  readonly total: number;
  /** Those that count against limits; an expired one that was in state error before is counted here alone. */
  readonly active: number;
  readonly byState: Readonly<Partial<Record<SandboxState, number>>>;
  readonly byProvider: Readonly<Record<string, number>>;
  readonly byWorker: Readonly<Record<string, number>>;
  /** As `active`. */
  readonly activeByWorker: Readonly<Record<string, number>>;
}

const active: ReadonlySet<SandboxState> = new Set(["creating", "running", "unhealthy", "expired"]);

/** How many sandboxes there are, kept as they come, change and go: whoever asks walks no sandbox. */
export class SandboxTally {
  readonly #cells = new Map<string, Tallied & { count: number }>();
  /** In state error and not in memory: their rows are all there is of them. */
  readonly #inRowsAlone = new Map<string, Tallied>();

  /** A sandbox counts as `now` and no longer as `before`; undefined: not at all. */
  move(before: Tallied | undefined, now: Tallied | undefined): void {
    if (before !== undefined) this.#cell(before).count--;
    if (now !== undefined) this.#cell(now).count++;
  }

  /** It leaves memory, its row stays. */
  leftToRow(row: Tallied & Pick<SandboxRow, "id">): void {
    this.backFromRow(row.id);
    this.#inRowsAlone.set(row.id, row);
    this.move(undefined, row);
  }

  backFromRow(id: string): void {
    const row = this.#inRowsAlone.get(id);
    if (!this.#inRowsAlone.delete(id)) return;
    this.move(row, undefined);
  }

  get counts(): SandboxCounts {
    let [total, activeOnes] = [0, 0];
    const byState: Record<string, number> = {};
    const byProvider: Record<string, number> = {};
    const byWorker: Record<string, number> = {};
    const activeByWorker: Record<string, number> = {};
    for (const { workerId, provider, state, count } of this.#cells.values()) {
      if (count === 0) continue;
      total += count;
      byState[state] = (byState[state] ?? 0) + count;
      byProvider[provider] = (byProvider[provider] ?? 0) + count;
      byWorker[workerId] = (byWorker[workerId] ?? 0) + count;
      if (!active.has(state)) continue;
      activeOnes += count;
      activeByWorker[workerId] = (activeByWorker[workerId] ?? 0) + count;
    }
    return { total, active: activeOnes, byState, byProvider, byWorker, activeByWorker };
  }

  #cell({ workerId, provider, state }: Tallied): { count: number } {
    const key = `${workerId}\n${provider}\n${state}`;
    let cell = this.#cells.get(key);
    if (cell === undefined) {
      cell = { workerId, provider, state, count: 0 };
      this.#cells.set(key, cell);
    }
    return cell;
  }
}
