import type { IncomingHttpHeaders } from "node:http";
import type { Readable } from "node:stream";
import { clientError } from "./errors.ts";
import type { Transport } from "./transport.ts";

export interface PortRequest {
  /** GET unless given. */
  method?: "GET" | "HEAD" | "POST" | "PUT" | "PATCH" | "DELETE";
  /**
   * For the program, an `Authorization` of its own too. A stream must have the `content-length` given, if one is, and end
   * then: more, less or no end within 30 s is `bad_request`.
   */
  headers?: Readonly<Record<string, string>>;
  body?: Readable | Uint8Array | string;
  signal?: AbortSignal;
  /** Until the answer begins, milliseconds. */
  timeoutMs?: number;
}

/** What a program answers, whatever its status. */
export interface PortAnswer {
  status: number;
  headers: IncomingHttpHeaders;
  /** Must be read to its end or destroyed. */
  body: Readable;
}

/** Asks a port by path. Refusals of the service are thrown: they do not say that the program has answered. */
export async function requestPort(
  transport: Transport,
  target: { sandboxId: string; port: number; path: string },
  request: PortRequest,
): Promise<PortAnswer> {
  const { method = "GET", body, signal, timeoutMs } = request;
  const { pathname, search } = targetOf(target.path);
  const answer = await transport.send({
    method,
    path: `/sandboxes/${encodeURIComponent(target.sandboxId)}/ports/${target.port}${pathname}`,
    search,
    headers: { ...programHeaders(request, transport), "x-alcove-client": "sdk" },
    ...(body === undefined ? {} : { body: typeof body === "string" ? Buffer.from(body) : body }),
    signal,
    timeoutMs,
    isAnswer: ({ headers }) => headers["x-alcove-source"] === "program",
  });
  return { status: answer.statusCode ?? 0, headers: answer.headers, body: answer };
}

/** Ways up end at the program's own root, as in a browser: none leads to another path of the API. */
function targetOf(path: string): URL {
  if (!path.startsWith("/"))
    throw clientError("bad_request", `the path ${JSON.stringify(path)} does not begin with "/"`);
  return new URL(`http://localhost${path}`);
}

function programHeaders({ headers = {} }: PortRequest, transport: Transport): Record<string, string> {
  const own = transport.headers();
  const given = Object.entries(headers).map(([name, value]) => [name.toLowerCase(), value] as const);
  const taken = given.find(([name]) => Object.hasOwn(own, name));
  if (taken !== undefined)
    throw clientError(
      "bad_request",
      `the header ${taken[0]} is this client's own: it tells the service who asks`,
    );
  return Object.fromEntries(given);
}
