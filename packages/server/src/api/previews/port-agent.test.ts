import { once } from "node:events";
import http, { type IncomingMessage } from "node:http";
import { Duplex } from "node:stream";
import { expect, test } from "vitest";
import { ReadTurns } from "../../platform/read-turns.ts";
import { PortAgent, type PortRequestArgs } from "./port-agent.ts";

test("Node's parser keeps nothing of what it was given: a connection may use that memory again", async () => {
  const program = new Duplex({ read: () => undefined, write: (_chunk, _encoding, done) => done() });
  const agent = new PortAgent({ keep: false, turns: new ReadTurns() });
  const args: PortRequestArgs = { agent, portKey: "sb-test:80", connect: async () => program };
  const request = http.request(args).end();
  const text = "what the program says".repeat(1_000);
  const read = Buffer.from(`HTTP/1.1 200 OK\r\nContent-Length: ${text.length}\r\n\r\n${text}`);
  program.push(read);
  const [answer] = (await once(request, "response")) as [IncomingMessage];
  read.fill(0);
  expect(String(Buffer.concat(await answer.toArray()))).toBe(text);
  agent.destroy();
});

test("what waits to be parsed is not in that memory", async () => {
  const program = new Duplex({ read: () => undefined, write: (_chunk, _encoding, done) => done() });
  const agent = new PortAgent({ keep: false, turns: new ReadTurns() });
  const args: PortRequestArgs = { agent, portKey: "sb-test:80", connect: async () => program };
  const request = http.request(args).end();
  const read = Buffer.from(
    `HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n${"1\r\nx\r\n".repeat(20_000)}0\r\n\r\n`,
  );
  program.push(read);
  const [answer] = (await once(request, "response")) as [IncomingMessage];
  read.fill(0);
  expect(String(Buffer.concat(await answer.toArray()))).toBe("x".repeat(20_000));
  agent.destroy();
});
