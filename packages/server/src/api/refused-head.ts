import type { IncomingMessage, ServerResponse } from "node:http";
import { endUnlessTaken } from "./stall-watch.ts";

/** Of the shortest headers a head of 16 KiB costs many times its bytes, for as long as its request is under way. */
export const mostHeaders = 200;

/** Node would refuse it by itself, at once: beside the turns of its connection, and as many of them as are sent. */
export function lacksHost({ httpVersion, headers }: IncomingMessage): boolean {
  return httpVersion === "1.1" && headers.host === undefined;
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
