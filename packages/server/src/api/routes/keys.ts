import { ApiKey, KeyRequest, NewApiKey, statusBody, Ticket, TicketRequest } from "@alcove/wire";
import { Type } from "typebox";
import type { KeyRing, KeyView } from "../../core/keys/key-ring.ts";
import type { Tickets } from "../../core/keys/tickets.ts";
import { sandboxNotFound } from "../../core/sandboxes/live-sandboxes.ts";
import type { SandboxService } from "../../core/sandboxes/sandbox-service.ts";
import { Conflict } from "../../ports/errors.ts";
import { confinedTo } from "../access.ts";
import { optionalDuration } from "../parse.ts";
import { sendList } from "../send-list.ts";
import { turnFor } from "../turn-for.ts";
import { emptyBody, type RouteApp } from "./route-app.ts";

const KeyParams = Type.Object({
  name: Type.String({ description: "Key.", minLength: 1, maxLength: 128, examples: ["ci"] }),
});

/** Keys that are made while the service runs, and tickets. docs/api/authentication.md. */
export function keyRoutes(
  app: RouteApp,
  options: {
    keys: KeyRing;
    tickets: Tickets;
    sandboxes: Pick<SandboxService, "ownerOf">;
    config: { auth: { enabled: boolean } };
  },
): void {
  const { keys, tickets, sandboxes, config } = options;
  const tags = ["keys"];

  app.route({
    method: "POST",
    url: "/admin/keys",
    schema: {
      tags,
      operationId: "createKey",
      summary: "Make a key",
      body: KeyRequest,
      response: { 201: NewApiKey },
    },
    handler: async (request, reply) => {
      if (!config.auth.enabled)
        throw new Conflict(
          "a key would guard nothing while auth is off: set auth.admin_api_key_file and restart the service first",
        );
      const { name, owner_id, scopes, ttl } = request.body;
      const { key, view } = await keys.create(
        {
          name,
          ownerId: owner_id,
          scopes,
          ttlMs: optionalDuration("ttl", ttl),
        },
        request.principal.name,
      );
      // Nothing on the way should keep it.
      reply.code(201).header("cache-control", "no-store");
      return { key, ...present(view) };
    },
  });

  app.route({
    method: "GET",
    url: "/admin/keys",
    schema: {
      tags,
      operationId: "listKeys",
      summary: "Keys, by name",
      response: { 200: Type.Array(ApiKey) },
    },
    handler: async (request, reply) => {
      await turnFor(request);
      sendList(reply, keys.list(), present);
      return reply;
    },
  });

  app.route({
    method: "DELETE",
    url: "/admin/keys/:name",
    schema: {
      tags,
      operationId: "revokeKey",
      summary: "Revoke a key; what it has open ends",
      params: KeyParams,
      ...emptyBody,
      response: { 200: statusBody("revoked") },
    },
    handler: async (request) => {
      await keys.revoke(request.params.name, request.principal.name);
      return { status: "revoked" as const };
    },
  });

  app.route({
    method: "POST",
    url: "/tickets",
    schema: {
      tags,
      operationId: "createTicket",
      summary: "Make a ticket for one WebSocket",
      body: TicketRequest,
      response: { 201: Ticket },
    },
    handler: async (request, reply) => {
      const { principal } = request;
      const confined = confinedTo(request);
      const { sandbox_id: sandboxId } = request.body;
      const owner = await sandboxes.ownerOf(sandboxId);
      if (owner === undefined || (confined !== undefined && owner !== confined))
        throw sandboxNotFound(sandboxId);
      const { ticket, expiresAt } = tickets.issue(principal, sandboxId);
      reply.code(201).header("cache-control", "no-store");
      return { ticket, sandbox_id: sandboxId, expires_at: expiresAt.toISOString() };
    },
  });
}

function present(view: KeyView): ApiKey {
  return {
    name: view.name,
    ...(view.ownerId === "" ? {} : { owner_id: view.ownerId }),
    scopes: [...view.scopes],
    configured: view.createdAt === null,
    ...(view.createdAt === null ? {} : { created_at: view.createdAt.toISOString() }),
    ...(view.expiresAt === null ? {} : { expires_at: view.expiresAt.toISOString() }),
    ...(view.lastUsedAt === null ? {} : { last_used_at: view.lastUsedAt.toISOString() }),
  };
}
