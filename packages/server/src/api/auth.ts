import type { IncomingHttpHeaders } from "node:http";
import type { FastifyRequest } from "fastify";
import type { KeyRing } from "../core/keys/key-ring.ts";
import type { Principal } from "../core/keys/principal.ts";
import type { Tickets } from "../core/keys/tickets.ts";
import { DomainError } from "../ports/errors.ts";

declare module "fastify" {
  interface FastifyRequest {
    principal: Principal;
  }
  interface FastifyContextConfig {
    /** Whether a ticket for the sandbox in the path does instead of a key. */
    takesTicket?: boolean;
  }
}

/** @returns the keys a request offers: X-API-Key, X-Admin-API-Key, Bearer. docs/api/README.md. */
export function offeredKeys(headers: IncomingHttpHeaders): string[] {
  const offered: string[] = [];
  for (const name of ["x-api-key", "x-admin-api-key"]) {
    const value = headers[name];
    if (typeof value === "string" && value !== "") offered.push(value);
  }
  const bearer = /^bearer +(\S+) *$/i.exec(headers.authorization ?? "")?.[1];
  if (bearer !== undefined) offered.push(bearer);
  return offered;
}

/** @returns who asks. @throws DomainError `unauthorized` unless one of the offered keys is accepted. */
export function authenticate(keys: KeyRing, headers: IncomingHttpHeaders): Principal {
  const offered = offeredKeys(headers);
  const known = offered.flatMap((key) => keys.principalOf(key) ?? []);
  // Who sends a client key and an admin key means the one that allows more.
  const found = known.find(({ scopes }) => scopes.has("admin")) ?? known[0];
  if (found !== undefined) return found;
  throw new DomainError("unauthorized", refusalOf(keys, offered));
}

function refusalOf(keys: KeyRing, offered: readonly string[]): string {
  if (offered.length === 0) return "an API key is required; send it as X-API-Key or as Authorization: Bearer";
  for (const key of offered) {
    const ended = keys.endOf(key);
    if (ended !== undefined)
      return `the API key "${ended.name}" expired at ${ended.at.toISOString()}; make a new one with POST /api/v1/admin/keys`;
  }
  return "the API key is not accepted";
}

const ticketProtocol = "ticket.";

/** @returns the ticket a WebSocket was asked for with: in the query, or as one of its subprotocols. */
function offeredTicket(request: FastifyRequest): string | undefined {
  const { ticket } = request.query as { ticket?: unknown };
  if (typeof ticket === "string" && ticket !== "") return ticket;
  const protocols = request.headers["sec-websocket-protocol"]?.split(",") ?? [];
  return protocols
    .map((protocol) => protocol.trim())
    .find((protocol) => protocol.startsWith(ticketProtocol))
    ?.slice(ticketProtocol.length);
}

/** Browsers want one of the subprotocols they offered; a ticket has been used and is the last choice. */
export function chooseProtocol(offered: ReadonlySet<string>): string | false {
  const [first] = offered;
  return [...offered].find((protocol) => !protocol.startsWith(ticketProtocol)) ?? first ?? false;
}

/** Looks at a ticket where a route takes one and no key is offered. @returns undefined where none counts. @throws DomainError */
export function authenticateByTicket(
  request: FastifyRequest,
  accepted: { keys: KeyRing; tickets: Tickets },
): Principal | undefined {
  if (request.routeOptions.config.takesTicket !== true || offeredKeys(request.headers).length > 0)
    return undefined;
  const ticket = offeredTicket(request);
  if (ticket === undefined) return undefined;
  const { id = "" } = request.params as { id?: string };
  const principal = accepted.tickets.redeem(ticket, id);
  if (principal !== undefined && accepted.keys.holds(principal)) return principal;
  throw new DomainError(
    "unauthorized",
    `the ticket is not accepted: one is good for one WebSocket to its sandbox within a minute; make a new one with POST /api/v1/tickets`,
  );
}
