import { boundedParallel } from "../../platform/bounded-parallel.ts";
import { deadlineAfter } from "../../platform/deadline.ts";
import { BadRequest, type CallOptions, DomainError, type RuntimeStats } from "../../ports/index.ts";
import type { ListedSandbox } from "../../ports/store.ts";
import type { ListPage, ListRequest } from "./listing.ts";

/** Of a list, each with what it uses; without `stats`: it does not run, or did not tell in time. */
export interface UsagePage {
  items: { sandbox: ListedSandbox; stats?: RuntimeStats }[];
  nextCursor?: string;
}

/** Smaller than a page of the list alone: each sandbox on it is asked. */
export const largestUsagePage = 100;
/** Asked at once, and how long each has: the whole page takes 14 s when none of them answers. */
const parallelAsks = 16;
const askMs = 2_000;

/**
 * One page of the list, and what each running sandbox on it uses now. One that cannot tell holds up and fails nobody.
 * @throws BadRequest as the list, and for a limit above `largestUsagePage`.
 */
export async function listUsage(
  request: ListRequest,
  from: {
    list: () => Promise<ListPage>;
    stats: (id: string, options: CallOptions) => Promise<RuntimeStats>;
    signal: AbortSignal;
    /** One failed in a way that nobody foresaw. */
    onFault: (id: string, error: unknown) => void;
  },
): Promise<UsagePage> {
  if (request.limit > largestUsagePage)
    throw new BadRequest(`limit must be a whole number from 1 to ${largestUsagePage}, not ${request.limit}`);
  const { items, nextCursor } = await from.list();
  const page: UsagePage["items"] = items.map((sandbox) => ({ sandbox }));
  const running = page.filter(({ sandbox }) => sandbox.state === "running");
  await boundedParallel(running, parallelAsks, async (item) => {
    using deadline = deadlineAfter(askMs, from.signal);
    try {
      item.stats = await from.stats(item.sandbox.id, { signal: deadline.signal });
    } catch (error) {
      from.signal.throwIfAborted();
      // A fault of ours is not hidden: it is in the log, and the others' figures are there all the same.
      if (!deadline.signal.aborted && !(error instanceof DomainError)) from.onFault(item.sandbox.id, error);
    }
  });
  return nextCursor === undefined ? { items: page } : { items: page, nextCursor };
}
