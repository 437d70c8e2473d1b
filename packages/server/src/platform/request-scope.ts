import { AsyncLocalStorage } from "node:async_hooks";

const scope = new AsyncLocalStorage<string | undefined>();

/** Runs `task` for a request: whatever is logged until its end, also in what it calls, names the request. */
export function withinRequest(requestId: string, task: () => void): void {
  // A scope is a copy of all that are known.
  if (scope.getStore() === requestId) task();
  else scope.run(requestId, task);
}

/** @returns the request this is done for; undefined for what nobody asked for, such as an expiry. */
export function currentRequestId(): string | undefined {
  return scope.getStore();
}

/** Runs `task` for nobody: what it arms outlives the request it was armed in. */
export function outsideRequests<T>(task: () => T): T {
  return scope.run(undefined, task);
}
