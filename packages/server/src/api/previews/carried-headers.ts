import type { IncomingMessage } from "node:http";
import { DomainError } from "../../ports/errors.ts";
import type { Client } from "./clients.ts";
import { confinedSetCookie, withoutOwn } from "./own-cookies.ts";

/** Names and values in turn, as Node takes them: repeated ones and their order stay. */
export type HeaderList = string[];

/** Between two neighbours alone. RFC 9110, 7.6.1. */
const hopByHop: ReadonlySet<string> = new Set([
  "connection",
  "keep-alive",
  "proxy-authenticate",
  "proxy-authorization",
  "proxy-connection",
  "te",
  "trailer",
  "transfer-encoding",
  "upgrade",
  "http2-settings",
]);

/** Where a key of this service may stand. What is none is the program's: many know keys of their own. */
const keyHeaders: ReadonlySet<string> = new Set(["authorization", "x-api-key", "x-admin-api-key"]);

/**
 * Whether a value that comes from an address is a key of this service. The program sees by what is left out which are, so that each
 * value that is new from the address counts as a guess.
 * @throws RateLimited
 */
export type KeyCheck = (value: string, address: string) => boolean;

/** What a program must not see, or must not be told by anybody but this service. */
const notForPrograms: ReadonlySet<string> = new Set([
  "x-worker-token",
  "x-worker-id",
  "x-alcove-client",
  "expect",
  "forwarded",
  "host",
  "x-real-ip",
  "content-length",
]);

/**
 * What a program must not tell a browser: it would be about more than its own host (cookies of the whole domain, other
 * ways to the name, reports on it), or is for who runs the service to say.
 */
const notFromPrograms: ReadonlySet<string> = new Set([
  "clear-site-data",
  "strict-transport-security",
  "public-key-pins",
  "public-key-pins-report-only",
  "expect-ct",
  "alt-svc",
  "nel",
  "report-to",
]);

/** Beyond those, where the program answers on the API's own host. */
const notFromPorts: ReadonlySet<string> = new Set([
  "set-cookie",
  "set-cookie2",
  "service-worker-allowed",
  "content-security-policy",
  "content-security-policy-report-only",
  "x-content-type-options",
  "x-alcove-source",
  "x-request-id",
  "refresh",
  "reporting-endpoints",
  "origin-agent-cluster",
  // What a browser keeps for the host, or sends it from then on.
  "accept-ch",
  "critical-ch",
  "use-as-dictionary",
  "set-login",
  "secure-session-registration",
  "sec-session-registration",
  // What it would load, or tell others.
  "speculation-rules",
  "sourcemap",
  "x-sourcemap",
  "timing-allow-origin",
]);

/**
 * What programs need that ask a port by path, and browsers would act on, here as if the API had said it: they ask for a password
 * in its name, and load what `Link` names also for answers that a page has asked for. Told under another name.
 */
const renamedFromPorts: ReadonlyMap<string, string> = new Map([
  ["link", "X-Alcove-Link"],
  ["www-authenticate", "X-Alcove-WWW-Authenticate"],
]);

/** What the service says of an answer of a program by path, under names of its own: a page that may call the API may read them. */
export const portHeaders: readonly string[] = [
  "X-Alcove-Source",
  "X-Alcove-Location",
  ...renamedFromPorts.values(),
];

/** Whether a request has a body, and how it is delimited; "0" is none. What both headers say was refused by the server's parser. */
export function bodyOf(request: IncomingMessage): { length: string } | "chunked" | undefined {
  const { "content-length": length, "transfer-encoding": encoding } = request.headers;
  if (encoding !== undefined) return "chunked";
  return length === undefined ? undefined : { length };
}

/**
 * A request's headers as the program gets them. The body's frame is told anew, so that nothing of what the client wrote
 * decides where a request ends.
 * @param options.cookies false: none at all.
 */
export function headersForProgram(
  request: IncomingMessage,
  options: {
    host: string;
    client: Client;
    isKey: KeyCheck;
    cookies: boolean;
    via: string;
  },
): HeaderList {
  const { host, client, isKey, cookies, via } = options;
  const listed = connectionOptions(request.rawHeaders);
  const headers: HeaderList = ["Host", host];
  for (const [name, value] of pairs(request.rawHeaders)) {
    // Programs behind CGI or WSGI take "X_Forwarded_For" for "X-Forwarded-For": there both are HTTP_X_FORWARDED_FOR.
    const lower = name.toLowerCase();
    const known = lower.replaceAll("_", "-");
    if (hopByHop.has(known) || notForPrograms.has(known) || known.startsWith("x-forwarded-")) continue;
    if (lower === "cookie") {
      const left = cookies ? withoutOwn(value) : undefined;
      if (left !== undefined) headers.push(name, left);
    } else if (keyHeaders.has(lower)) {
      const key = keyIn(lower, value);
      if (key === undefined || !isKey(key, client.address)) headers.push(name, value);
    } else if (!listed.has(lower)) headers.push(name, value);
  }
  const body = bodyOf(request);
  if (body === "chunked") headers.push("Transfer-Encoding", "chunked");
  else if (body !== undefined) headers.push("Content-Length", body.length);
  else if (!/^(GET|HEAD|OPTIONS|DELETE)$/.test(request.method ?? "")) headers.push("Content-Length", "0");
  headers.push("X-Forwarded-For", client.forwardedFor);
  headers.push("X-Forwarded-Host", host, "X-Forwarded-Proto", client.proto, "Via", `1.1 ${via}`);
  return headers;
}

/** An answer's headers as the client of a preview host gets them. @throws DomainError `bad_gateway` */
export function headersFromProgram(answer: IncomingMessage): HeaderList {
  return carried(answer, (name, lower, value, headers) => {
    if (lower !== "set-cookie") headers.push(name, value);
    else {
      const confined = confinedSetCookie(value);
      if (confined !== undefined) headers.push(name, confined);
    }
  });
}

/**
 * An answer's headers where the program answers below a path of the API: no browser may take what it is for a page of the
 * API, nor let it change what the API's host has in the browser.
 * A redirect leads within the program's own paths, or nowhere: programs that follow one send their key along.
 * @param options.prefix of the path that the port is reached by.
 * @param options.url what the program was asked for, as it knows itself.
 */
export function headersFromPort(
  answer: IncomingMessage,
  options: { prefix: string; url: string },
): HeaderList {
  return carried(answer, (name, lower, value, headers) => {
    if (notFromPorts.has(lower) || lower.startsWith("access-control-")) return;
    if (lower !== "location") {
      headers.push(renamedFromPorts.get(lower) ?? name, value);
      return;
    }
    const within = pathWithin(value, options.url);
    if (within === undefined) headers.push("X-Alcove-Location", value);
    else headers.push(name, options.prefix + within);
  });
}

/** @returns the path of a reference, without any way up; undefined when it leads elsewhere. */
function pathWithin(reference: string, base: string): string | undefined {
  if (!URL.canParse(reference, base)) return undefined;
  const { origin, pathname, search, hash } = new URL(reference, base);
  return origin === new URL(base).origin ? pathname + search + hash : undefined;
}

function carried(
  answer: IncomingMessage,
  carry: (name: string, lower: string, value: string, headers: HeaderList) => void,
): HeaderList {
  const listed = connectionOptions(answer.rawHeaders);
  const headers: HeaderList = [];
  const unmeasured =
    answer.statusCode === 204 ||
    answer.statusCode === 101 ||
    answer.headers["transfer-encoding"] !== undefined;
  for (const [name, value] of pairs(answer.rawHeaders)) {
    const lower = name.toLowerCase();
    if (hopByHop.has(lower) || listed.has(lower) || notFromPrograms.has(lower)) continue;
    if (lower === "content-length" && unmeasured) continue;
    // Nothing that would begin another line may reach this service's own answer, whatever the parser let through.
    if (!/^[\t\x20-\x7e\x80-\xff]*$/.test(value))
      throw new DomainError("bad_gateway", "the program's answer has a header that HTTP does not allow");
    carry(name, lower, value, headers);
  }
  return headers;
}

/** What of such a header may be a key; undefined: the credentials of another scheme. */
function keyIn(name: string, value: string): string | undefined {
  const bearer = /^bearer +(\S+) *$/i.exec(value)?.[1];
  if (bearer !== undefined) return bearer;
  return name === "authorization" && /\s/.test(value.trim()) ? undefined : value;
}

/** Names that Connection lists: they end here too. What frames and addresses a message is not the sender's to drop. */
function connectionOptions(raw: readonly string[]): ReadonlySet<string> {
  const listed = new Set<string>();
  for (const [name, value] of pairs(raw))
    if (name.toLowerCase() === "connection")
      for (const option of value.split(",")) listed.add(option.trim().toLowerCase());
  for (const needed of ["set-cookie", "content-length", "content-type", "location"]) listed.delete(needed);
  return listed;
}

function* pairs(raw: readonly string[]): Generator<[name: string, value: string]> {
  for (let index = 0; index + 1 < raw.length; index += 2) yield [raw[index] ?? "", raw[index + 1] ?? ""];
}
