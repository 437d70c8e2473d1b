import { once } from "node:events";
import http from "node:http";
import type { AddressInfo } from "node:net";
import { AlcoveClient } from "@alcove/sdk";
import { expect, it } from "vitest";
import { WebSocketServer } from "ws";
import { LastingExec } from "./lasting-exec.ts";

it("input of which nobody knows how much arrived is told, also where output still comes", async () => {
  const server = http.createServer().listen(0, "127.0.0.1");
  await once(server, "listening");
  const sockets = new WebSocketServer({ server });
  sockets.on("headers", (headers) => headers.push("X-Exec-ID: ex-1"));
  sockets.on("connection", (socket) =>
    socket.on("message", (data) => {
      const { type } = JSON.parse(String(data));
      const send = (message: object) => socket.send(JSON.stringify(message));
      if (type === "start") send({ type: "input", taken: 0 });
      if (type === "stdin") socket.terminate();
      if (type !== "attach") return;
      send({ type: "input" });
      send({ type: "stdout", data: "more" });
    }),
  );
  try {
    const { port } = server.address() as AddressInfo;
    using client = new AlcoveClient({ url: `http://127.0.0.1:${port}` });
    using command = await LastingExec.open({
      client,
      id: "sb-a",
      start: { command: "cat" },
      input: "streamed",
      onRefusal: () => undefined,
    });
    await command.stdin(Buffer.from("given"));
    const read = async () => {
      for await (const _message of command.messages());
    };
    await expect(read()).rejects.toMatchObject({
      code: "cut",
      message: "the connection broke; input was on its way, and how much of it arrived is not known",
    });
  } finally {
    sockets.close();
    server.close();
  }
});
