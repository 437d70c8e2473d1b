import type { IncomingMessage, ServerResponse } from "node:http";
import { Readable } from "node:stream";
import type { DomainError } from "../../ports/errors.ts";
import { errorBody, httpStatus } from "../error-map.ts";
import { bodyIsUnderWay, refusalOfBody } from "../refused-body.ts";

/** How long a page that may soon be another one waits before it looks again, seconds. */
const lookAgainS = 2;

const titles: Partial<Record<DomainError["code"], string>> = {
  unauthorized: "This preview needs a link",
  not_found: "There is no such sandbox",
  conflict: "This sandbox does not run",
  bad_gateway: "No answer from this port",
  gateway_timeout: "No answer from this port",
  unavailable: "One moment",
};

/**
 * Why there is no preview: a page for people, JSON for programs. A page that may pass, because a program or a sandbox is
 * still starting, looks again by itself.
 */
export function answerFailure(request: IncomingMessage, response: ServerResponse, error: DomainError): void {
  const forPeople = /\btext\/html\b/.test(request.headers.accept ?? "");
  const body = Buffer.from(forPeople ? page(error) : JSON.stringify(errorBody(error)));
  const type = forPeople ? "text/html" : "application/json";
  response.writeHead(httpStatus[error.code], {
    "Content-Type": `${type}; charset=utf-8`,
    "Content-Length": body.length,
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors *",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    ...(error.retryAfterS === undefined ? {} : { "Retry-After": String(error.retryAfterS) }),
    // Its body may be long, and nobody reads it.
    ...(request.complete ? {} : { Connection: "close" }),
  });
  if (bodyIsUnderWay(request))
    Readable.from(refusalOfBody(body, request), { objectMode: false }).pipe(response);
  else response.end(request.method === "HEAD" ? undefined : body);
}

function page(error: DomainError): string {
  const title = titles[error.code] ?? "This preview cannot be shown";
  const again = error.retryAfterS === undefined ? "" : `<meta http-equiv="refresh" content="${lookAgainS}">`;
  const note = error.retryAfterS === undefined ? "" : "<p>This page looks again by itself.</p>";
  return `<!doctype html><html lang="en"><head><meta charset="utf-8">${again}<meta name="viewport" content="width=device-width"><title>${escaped(title)}</title><style>body{font:1rem/1.5 system-ui,sans-serif;max-width:40rem;margin:15vh auto;padding:0 1rem}p{overflow-wrap:anywhere}</style></head><body><h1>${escaped(title)}</h1><p>${escaped(error.message)}</p>${note}</body></html>`;
}

function escaped(text: string): string {
  return text
    .replaceAll("&", "&amp;")
    .replaceAll("<", "&lt;")
    .replaceAll(">", "&gt;")
    .replaceAll('"', "&quot;");
}
