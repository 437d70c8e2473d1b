import type { SandboxOperations } from "../../ports/sandbox-operations.ts";
import type { SandboxRow } from "../../ports/store.ts";

/** A sandbox that was found running, and what can be done in it. */
export interface ExecTarget {
  row: SandboxRow;
  operations: SandboxOperations;
}
