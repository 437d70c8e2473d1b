import { AsyncLocalStorage } from "node:async_hooks";
import type { Span, SpanAttributes } from "../ports/tracer.ts";

/** What is done, in this and in all it calls, is done for a request. */
interface RequestScope {
  readonly requestId: string;
  /** The part of the request's trace that this belongs to; undefined when nobody traces. */
  readonly span: Span | undefined;
}

const scope = new AsyncLocalStorage<RequestScope | undefined>();

/** Runs `task` for a request: whatever is logged until its end, also in what it calls, names the request. */
export function withinRequest(request: { id: string; span: Span | undefined }, task: () => void): void {
  const current = scope.getStore();
  // A scope is a copy of all that are known. Ids may be the caller's, and two requests have the same.
  if (current?.requestId === request.id && current.span === request.span) task();
  else scope.run({ requestId: request.id, span: request.span }, task);
}

/** @returns what runs a task for the request of now, wherever it is called from: what a socket says later comes from no request. */
export function rememberRequest(): <T>(task: () => T) => T {
  const current = scope.getStore();
  return (task) => scope.run(current, task);
}

/** @returns the request this is done for; undefined for what nobody asked for, such as an expiry. */
export function currentRequestId(): string | undefined {
  return scope.getStore()?.requestId;
}

/** @returns what the work under way is told as in a trace; undefined when nobody traces it. */
export function currentSpan(): Span | undefined {
  return scope.getStore()?.span;
}

/** Runs `task` for nobody: what it arms outlives the request it was armed in. */
export function outsideRequests<T>(task: () => T): T {
  return scope.run(undefined, task);
}

/** Runs `task` as a part of the request's trace, where there is one; its failure is the part's too. */
export async function traced<T>(
  name: string,
  attributes: SpanAttributes,
  task: () => Promise<T>,
): Promise<T> {
  const within = scope.getStore();
  if (within?.span === undefined) return await task();
  const span = within.span.child(name, { attributes });
  try {
    const result = await scope.run({ ...within, span }, task);
    span.end();
    return result;
  } catch (error) {
    span.end({ error: errorType(error) });
    throw error;
  }
}

/** The class of an error: its code, else its name. Messages may name things that traces must not. */
export function errorType(error: unknown): string {
  if (typeof error !== "object" || error === null) return "unknown";
  if ("code" in error && typeof error.code === "string") return error.code;
  return error instanceof Error ? error.name : "unknown";
}
