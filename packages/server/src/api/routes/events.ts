import { Event, type EventType, eventTypes, OwnerId } from "@alcove/wire";
import { Type } from "typebox";
import type { EventLog } from "../../core/events/event-log.ts";
import type { Logger } from "../../platform/logger.ts";
import { BadRequest } from "../../ports/errors.ts";
import { wantedOwner } from "../access.ts";
import { defined, given } from "../parse.ts";
import { shareOf } from "../share.ts";
import { eventText, sendEventStream } from "../streams/sse.ts";
import type { RouteApp } from "./route-app.ts";

const names = eventTypes.map((type) => type.replace(".", "\\.")).join("|");
const EventsQuery = Type.Object({
  type: Type.Optional(
    Type.Unsafe<string | string[]>({
      "x-rule": "core",
      anyOf: [
        { type: "string", pattern: `^(?:(?:${names})(?:,(?:${names}))*)?$` },
        { type: "array", items: { enum: [...eventTypes] } },
      ],
      description: "Event types, repeated or separated by commas.",
      examples: ["exec.completed,exec.failed"],
    }),
  ),
  sandbox_id: Type.Optional(
    Type.String({ description: "Of this sandbox alone.", examples: ["sb-k3v9x0a1b2c3"] }),
  ),
  owner_id: Type.Optional(OwnerId),
});

const EventsHeaders = Type.Object({
  "last-event-id": Type.Optional(
    Type.String({
      description:
        "Id of the last event that was read: what came after it comes first. An id that is not ours is ignored.",
      examples: ["4711"],
    }),
  ),
});

/** `GET /events`: what happens, as server-sent events. docs/api/events.md. */
export function eventRoutes(app: RouteApp, options: { events: EventLog; logger: Logger }): void {
  const { events, logger } = options;
  app.route({
    method: "GET",
    url: "/events",
    exposeHeadRoute: false,
    schema: {
      tags: ["events"],
      operationId: "streamEvents",
      summary: "Events as they happen; Last-Event-ID replays what came after it",
      headers: EventsHeaders,
      querystring: EventsQuery,
      openapi: {
        responses: {
          200: {
            description: "One Event per `data:` line.",
            content: { "text/event-stream": { schema: Event } },
          },
        },
      },
    },
    handler: async (request, reply) => {
      const filter = defined({
        types: typesOf(request.query.type),
        sandboxId: given(request.query.sandbox_id),
        ownerId: wantedOwner(request, given(request.query.owner_id)),
        afterId: lastEventId(request.headers["last-event-id"]),
      });
      const signal = reply.endlessSignal;
      // A reader that does not read, or that gives way to another, would otherwise keep its connection, and what is
      // buffered for it, for ever.
      const onCut = () => reply.raw.destroy();
      const { lastId } = events;
      const replays = filter.afterId !== undefined && filter.afterId <= lastId;
      const { scopes, ownerId } = request.principal;
      const subscription = events.subscribe({
        ...filter,
        withoutKeys: !scopes.has("admin") && ownerId === undefined,
        caller: shareOf(request),
        signal,
        onCut,
      });
      const openingId = replays ? undefined : String(lastId);
      await sendEventStream(reply, inText(subscription.pieces()), defined({ signal, logger, openingId }));
      return reply;
    },
  });
}

/** @throws BadRequest for a type that no event has. */
function typesOf(query: string | string[] | undefined): EventType[] | undefined {
  const names = [query ?? []]
    .flat()
    .flatMap((text) => text.split(","))
    .map((name) => name.trim())
    .filter((name) => name !== "");
  if (names.length === 0) return undefined;
  return names.map((name) => {
    const type = eventTypes.find((known) => known === name);
    if (type === undefined)
      throw new BadRequest(
        `type ${JSON.stringify(name.slice(0, 64))} is no event type; known are ${eventTypes.join(", ")}`,
      );
    return type;
  });
}

/** An id that is not one of ours is ignored. docs/api/events.md. */
function lastEventId(header: string | string[] | undefined): number | undefined {
  return typeof header === "string" && /^\d{1,15}$/.test(header) ? Number(header) : undefined;
}

/** Readers share the events that they are handed: each is written out once. */
const texts = new WeakMap<Event, string>();

async function* inText(pieces: AsyncIterable<readonly Event[]>): AsyncGenerator<string> {
  for await (const piece of pieces) {
    let text = "";
    for (const event of piece) text += textOf(event);
    yield text;
  }
}

function textOf(event: Event): string {
  let text = texts.get(event);
  if (text === undefined) {
    text = eventText(event, event.id);
    texts.set(event, text);
  }
  return text;
}
