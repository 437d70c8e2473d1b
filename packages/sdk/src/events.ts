import { setTimeout as pause } from "node:timers/promises";
import type { Event } from "@alcove/wire";
import { AlcoveError } from "./errors.ts";
import { openEvents } from "./event-response.ts";
import { parse, readEvents } from "./lines.ts";
import { longestWaitMs, type Transport } from "./transport.ts";

export interface EventFilter {
  types?: readonly string[];
  sandboxId?: string;
  ownerId?: string;
  /** Replays what came after this event. */
  lastEventId?: string;
  signal?: AbortSignal;
  /** Told about each connection that broke, before the next attempt. */
  onReconnect?: (error: unknown, inMs: number) => void;
}

const connectMs = 10_000;
const firstPauseMs = 500;
const longestPauseMs = 15_000;

/** Follows the event stream until the signal aborts, over any number of connections. What no repetition helps ends it. */
export async function* eventStream(transport: Transport, filter: EventFilter): AsyncGenerator<Event> {
  let lastEventId = filter.lastEventId;
  let pauseMs = firstPauseMs;
  while (filter.signal?.aborted !== true) {
    const sinceMs = performance.now();
    let failure: unknown;
    let askedMs = 0;
    try {
      const opened = (id: string) => {
        lastEventId ??= id;
      };
      for await (const event of oneConnection(transport, filter, { lastEventId, opened })) {
        pauseMs = firstPauseMs;
        lastEventId = event.id;
        yield event;
      }
    } catch (error) {
      if (filter.signal?.aborted) return;
      if (!passes(error)) throw error;
      askedMs = (error.retryAfterS ?? 0) * 1_000;
      failure = error;
    }
    if (filter.signal?.aborted) return;
    // One that lasted was good, also where there was nothing to tell.
    if (performance.now() - sinceMs > longestPauseMs) pauseMs = firstPauseMs;
    const waitMs = Math.min(Math.max(pauseMs, askedMs), longestWaitMs);
    filter.onReconnect?.(failure, waitMs);
    await pause(waitMs, undefined, filter.signal === undefined ? {} : { signal: filter.signal }).catch(
      () => undefined,
    );
    pauseMs = Math.min(pauseMs * 2, longestPauseMs);
  }
}

/**
 * Whether it may be over at another try. A refusal is not, unless it says when to come again, nor is an answer of somebody else
 * or a request that cannot be made.
 */
function passes(error: unknown): error is AlcoveError {
  if (!(error instanceof AlcoveError)) return false;
  const { status, code, retryAfterS } = error;
  if (status === 0) return code !== "bad_request" && code !== "bad_response";
  return status >= 500 || retryAfterS !== undefined;
}

async function* oneConnection(
  transport: Transport,
  filter: EventFilter,
  from: { lastEventId: string | undefined; opened: (id: string) => void },
): AsyncGenerator<Event> {
  const { lastEventId, opened } = from;
  const response = await openEvents(transport, {
    path: "/events",
    query: { type: filter.types, sandbox_id: filter.sandboxId, owner_id: filter.ownerId },
    headers: lastEventId === undefined ? {} : { "last-event-id": lastEventId },
    timeoutMs: connectMs,
    signal: filter.signal,
  });
  for await (const message of readEvents(response, { id: opened })) {
    const event: Event = parse(message.data);
    yield event;
  }
}
