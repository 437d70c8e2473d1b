import { setTimeout as pause } from "node:timers/promises";
import type { Event } from "@alcove/wire";
import { AlcoveError } from "./errors.ts";
import { parse, readEvents } from "./lines.ts";
import { cutWhenSilent } from "./silence.ts";
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

/** Follows the event stream until the signal aborts, over any number of connections. A refusal (4xx) ends it, unless it says when to come again. */
export async function* eventStream(transport: Transport, filter: EventFilter): AsyncGenerator<Event> {
  let lastEventId = filter.lastEventId;
  let pauseMs = firstPauseMs;
  while (filter.signal?.aborted !== true) {
    let failure: unknown;
    let waitMs = pauseMs;
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
      if (error instanceof AlcoveError) {
        const { status, retryAfterS } = error;
        if (status >= 400 && status < 500 && retryAfterS === undefined) throw error;
        waitMs = Math.min(Math.max(pauseMs, (retryAfterS ?? 0) * 1_000), longestWaitMs);
      }
      failure = error;
    }
    if (filter.signal?.aborted) return;
    filter.onReconnect?.(failure, waitMs);
    await pause(waitMs, undefined, filter.signal === undefined ? {} : { signal: filter.signal }).catch(
      () => undefined,
    );
    pauseMs = Math.min(pauseMs * 2, longestPauseMs);
  }
}

async function* oneConnection(
  transport: Transport,
  filter: EventFilter,
  from: { lastEventId: string | undefined; opened: (id: string) => void },
): AsyncGenerator<Event> {
  const { lastEventId, opened } = from;
  const response = await transport.send({
    method: "GET",
    path: "/events",
    query: { type: filter.types, sandbox_id: filter.sandboxId, owner_id: filter.ownerId },
    headers: {
      accept: "text/event-stream",
      ...(lastEventId === undefined ? {} : { "last-event-id": lastEventId }),
    },
    timeoutMs: connectMs,
    signal: filter.signal,
  });
  cutWhenSilent(response);
  for await (const message of readEvents(response, { id: opened })) {
    const event: Event = parse(message.data);
    yield event;
  }
}
