import { Writable } from "node:stream";
import type { WebSocket } from "@fastify/websocket";
import type { FastifyRequest } from "fastify";
import { pino } from "pino";
import { expect, it } from "vitest";
import { socketFailure } from "./socket-failure.ts";

it.each([
  [
    "what a client did",
    Object.assign(new RangeError("too much"), { code: "WS_ERR_TOO_MANY_BUFFERED_PARTS" }),
    20,
  ],
  ["a mistake of ours", new TypeError("it is undefined"), 50],
])("%s is logged as that, and the socket ends", (_what, error, level) => {
  const lines: Record<string, unknown>[] = [];
  const log = new Writable({
    write(line, _encoding, done) {
      lines.push(JSON.parse(String(line)));
      done();
    },
  });
  let terminated = 0;
  const socket = { terminate: () => (terminated += 1) } as unknown as WebSocket;
  const request = { id: "r1", url: "/api/v1/x?ticket=secret" } as FastifyRequest;
  socketFailure(pino({ level: "debug" }, log))(error, socket, request);
  expect(lines).toMatchObject([{ level, request_id: "r1", path: "/api/v1/x" }]);
  expect(JSON.stringify(lines).includes("stack")).toBe(level === 50);
  expect(terminated).toBe(1);
});
