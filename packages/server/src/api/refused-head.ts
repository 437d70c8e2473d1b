import type { IncomingMessage, ServerResponse } from "node:http";
import { endUnlessTaken } from "./stall-watch.ts";

/** Of the shortest headers a head of 16 KiB costs many times its bytes, for as long as its request is under way. */
export const mostHeaders = 200;

/**
 * Without one, or with several, of which whoever is in front may take another than this service. Node would refuse the former by itself, at
 * once: beside the turns of its connection, and as many of them as are sent.
 */
export function lacksOneHost({ httpVersion, headers, rawHeaders }: IncomingMessage): boolean {
  if (headers.host === undefined) return httpVersion === "1.1";
  let hosts = 0;
  for (let at = 0; at < rawHeaders.length; at += 2) {
    const name = rawHeaders[at] ?? "";
    if (name.length === 4 && name.toLowerCase() === "host") hosts += 1;
  }
  return hosts > 1;
}

/** Its body is coded in a way that nobody here undoes: a program behind a preview, which hears of chunks alone, would take it for plain. */
export function hasCodedBody({ headers }: IncomingMessage): boolean {
  const codings = headers["transfer-encoding"];
  return codings !== undefined && codings.trim().toLowerCase() !== "chunked";
}

/** Answers a request whose head alone is reason to refuse it, and ends the connection. @param body JSON. */
export function refuseHead(response: ServerResponse, status: number, body = ""): void {
  response.writeHead(status, {
    ...(body !== "" && { "Content-Type": "application/json; charset=utf-8" }),
    "Content-Length": body.length,
    Connection: "close",
  });
  endUnlessTaken(response);
  response.end(body);
}
