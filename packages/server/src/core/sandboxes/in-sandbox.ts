import { deadlineAfter } from "../../platform/deadline.ts";
import {
  type CallOptions,
  Conflict,
  type DomainError,
  NotFound,
  ProviderError,
  RuntimeGone,
  Unavailable,
} from "../../ports/index.ts";
import type { RunningSandbox } from "./live-sandboxes.ts";

interface Sandboxes {
  locate(id: string, options: CallOptions): Promise<RunningSandbox>;
}

/** How long it may take to see whether a sandbox is still there, milliseconds. */
const lookDeadlineMs = 2_000;

/**
 * Does something in a running sandbox. When that fails because the sandbox ends meanwhile, whatever its provider says of it,
 * the caller is told what one is told who comes now.
 * @throws as `locate`, and what `act` throws.
 */
export async function inSandbox<T>(
  sandboxes: Sandboxes,
  id: string,
  options: CallOptions,
  act: (sandbox: RunningSandbox) => Promise<T>,
): Promise<T> {
  const sandbox = await sandboxes.locate(id, options);
  return withItsEnd(sandboxes, id, options, () => act(sandbox));
}

/** As `inSandbox`, of what needs no connection to the sandbox. */
export async function withItsEnd<T>(
  sandboxes: Sandboxes,
  id: string,
  options: CallOptions,
  act: () => Promise<T>,
): Promise<T> {
  try {
    return await act();
  } catch (error) {
    if (options.signal.aborted || !mayBeItsEnd(error)) throw error;
    throw (await endOf(sandboxes, id)) ?? error;
  }
}

/** @returns what is told of a sandbox that was destroyed, is being, or has ended; undefined while it is there. */
export async function endOf(sandboxes: Sandboxes, id: string): Promise<NotFound | Conflict | undefined> {
  try {
    using deadline = deadlineAfter(lookDeadlineMs);
    await sandboxes.locate(id, deadline);
    return undefined;
  } catch (error) {
    return error instanceof NotFound || error instanceof Conflict ? error : undefined;
  }
}

/** What providers throw whose runtime goes away under a call. */
function mayBeItsEnd(error: unknown): error is DomainError {
  return error instanceof RuntimeGone || error instanceof Unavailable || error instanceof ProviderError;
}
