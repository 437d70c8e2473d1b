import type { InventoryEntry } from "../../ports/index.ts";
import type { DestroyReason } from "../sandboxes/destroy-flow.ts";
import { type LiveSandbox, mayRun } from "../sandboxes/live-sandboxes.ts";
import type { Age } from "./store-age.ts";

/** What a sandbox needs. */
export type Finding =
  | { kind: "leave" }
  /** A spawn nobody works on any more. */
  | { kind: "undo" }
  | { kind: "destroy"; reason: DestroyReason }
  | { kind: "adopt" }
  /** It runs, and may have been extended since the store was written: it is adopted with a life as long as a new one's. */
  | { kind: "adopt_longer" }
  | {
      kind: "vanished";
      why: string /** It stays with the installation that this one was copied from. */;
      leftBehind?: true;
    }
  /** In state error, and its runtime still exists. */
  | { kind: "remains" }
  /** In state error, and nothing is left. */
  | { kind: "over" }
  | { kind: "unreachable"; why: string };

const unreadable: Finding = {
  kind: "unreachable",
  why: "the record of its runtime cannot be read by this release",
};

const elsewhere = (entry: LiveSandbox): Finding => ({
  kind: "unreachable",
  why: entry.elsewhere ?? "its provider was at another place when it was made, and does not reach it now",
});

/** Compares one sandbox with what its provider has of it. Rows of docs/decisions/states.md. */
export function judge(
  entry: LiveSandbox,
  facts: {
    age: Age;
    runtime: InventoryEntry | undefined;
    /** It was past creating before the inventory was taken. */
    ranBefore: boolean;
    /** Its runtime ended with the process that ran it. */
    endedWithProcess: boolean;
    now: Date;
    /** When this installation was made from a copy of another one, which kept the runtimes. */
    restoredAt: Date | undefined;
  },
): Finding {
  const { row, work } = entry;
  if (work !== undefined || row.state === "destroyed") return { kind: "leave" };
  if (row.state === "creating") return { kind: "undo" };
  if (row.destroyRequested)
    return { kind: "destroy", reason: row.state === "expired" ? "expired" : "reconciled" };
  if (entry.outdated && mayRun(row)) {
    if (facts.runtime?.state === "running") {
      if (facts.age !== "open") return { kind: "adopt_longer" };
      return { kind: row.expiresAt <= facts.now ? "leave" : "adopt" };
    }
    if (facts.runtime?.state === "unreadable") return unreadable;
    if (facts.runtime?.state === "elsewhere") return elsewhere(entry);
  }
  if (row.state === "expired" || row.expiresAt <= facts.now) return { kind: "destroy", reason: "expired" };
  if (facts.endedWithProcess && facts.runtime === undefined) return { kind: "destroy", reason: "reconciled" };
  if (facts.runtime?.state === "unreadable") return unreadable;
  if (facts.runtime?.state === "elsewhere")
    return row.state === "error" ? { kind: "leave" } : elsewhere(entry);
  if (row.state === "error") return { kind: facts.runtime === undefined ? "over" : "remains" };
  if (facts.runtime?.state === "running") return { kind: "adopt" };
  if (!facts.ranBefore) return { kind: "leave" };
  if (facts.runtime !== undefined) return { kind: "vanished", why: foundDead };
  return isLeftBehind(row, facts.restoredAt)
    ? { kind: "vanished", why: "it was not brought along by the restore", leftBehind: true }
    : { kind: "vanished", why: "it is no longer there" };
}

/** It stayed with the installation that this one was copied from. */
export function isLeftBehind({ createdAt }: LiveSandbox["row"], restoredAt: Date | undefined): boolean {
  return restoredAt !== undefined && createdAt <= restoredAt;
}

/** Nobody saw it end. */
const foundDead =
  "it did not run any more when it was looked for; a restart of the machine, or of its engine, ends it so";

/**
 * What a sandbox needs whose provider is not used; its end comes with its expiry.
 * @param why the provider is not.
 */
export function judgeWithoutProvider({ row }: LiveSandbox, why: string): Finding {
  if (row.state === "creating") return { kind: "undo" };
  return { kind: "unreachable", why };
}
