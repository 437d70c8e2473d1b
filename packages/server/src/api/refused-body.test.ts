import { once } from "node:events";
import http from "node:http";
import type { AddressInfo } from "node:net";
import { Readable } from "node:stream";
import { expect, test } from "vitest";
import { refusalOfBody } from "./refused-body.ts";

test("a sender that never ends gets its refusal, and is left when the patience is over", async () => {
  const answer = Buffer.from("no");
  const server = http.createServer((request, response) => {
    response.writeHead(413, { "content-length": answer.length, connection: "close" });
    Readable.from(refusalOfBody(answer, request, { patienceMs: 100 })).pipe(response);
  });
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  try {
    const { port } = server.address() as AddressInfo;
    const request = http.request({ host: "127.0.0.1", port, method: "PUT", agent: false });
    request.on("error", () => undefined);
    request.write("some");
    const [response] = (await once(request, "response")) as [http.IncomingMessage];
    expect([response.statusCode, String(await response.toArray())]).toEqual([413, "no"]);
    await once(request, "close");
  } finally {
    server.close();
    server.closeAllConnections();
  }
});
