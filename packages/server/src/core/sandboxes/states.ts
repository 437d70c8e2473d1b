import type { SandboxState } from "@alcove/wire";

/** Every move a sandbox can make. docs/decisions/states.md. */
export const transitions = {
  creating: ["running", "expired", "error", "destroyed"],
  running: ["unhealthy", "expired", "error", "destroyed"],
  unhealthy: ["running", "expired", "error", "destroyed"],
  expired: ["destroyed"],
  error: ["expired", "destroyed"],
  destroyed: [],
} as const satisfies Record<SandboxState, readonly SandboxState[]>;

/** @returns the states a move to `target` may start from. */
export function statesBefore(target: SandboxState): SandboxState[] {
  return (Object.keys(transitions) as SandboxState[]).filter((from) =>
    (transitions[from] as readonly SandboxState[]).includes(target),
  );
}

/** Every state but destroyed. */
export const liveStates = [
  "creating",
  "running",
  "unhealthy",
  "expired",
  "error",
] as const satisfies readonly SandboxState[];
