import { mkdtemp, rm } from "node:fs/promises";
import { createServer, type Socket } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { ExecId } from "../../ports/ids.ts";
import { encodeHeader, encodeJsonFrame, frameKinds } from "./frames.ts";

type Json = Record<string, unknown>;

/** A command, as it is started with a fake agent and as that tells its end. */
export const execId = "ex-abcdefgh" as ExecId;
export const spec = {
  execId,
  command: "true",
  args: [],
  argv: ["true"],
  env: {},
  stdin: false,
  timeoutMs: 1_000,
  detached: false,
};
export const exit = {
  event: "exit",
  exec_id: execId,
  exit_code: 0,
  reason: "exited",
  started_at: 1,
  ended_at: 2,
  duration_ms: 1,
  output_bytes: 2,
};

/** One connection as a test's agent sees it. */
export interface FakeConnection {
  socket: Socket;
  /** Counts connections from 0. */
  index: number;
  frame(kind: number, value: Json): void;
  /** As `frame`, of a text that need not be what any value is written as. */
  text(kind: number, text: string): void;
  raw(kind: number, bytes: Buffer, offset?: number | bigint): void;
  /** A reply and `end`. */
  answer(value: Json): void;
  end(): void;
}

/** An agent that says what a test wants: for the failures no real agent produces on demand. */
export interface FakeAgent extends AsyncDisposable {
  path: string;
  connections: number;
  /** Connections that are open now. */
  readonly open: number;
  requests: Json[];
  received: number;
}

export async function fakeAgent(
  onRequest: (request: Json, connection: FakeConnection) => void,
  onRaw: (kind: number, bytes: Buffer, connection: FakeConnection) => void = () => undefined,
  features?: string[],
): Promise<FakeAgent> {
  const folder = await mkdtemp(join(tmpdir(), "alcove-fake-"));
  const sockets = new Set<Socket>();
  const agent: FakeAgent = {
    path: join(folder, "s"),
    connections: 0,
    get open() {
      return sockets.size;
    },
    requests: [],
    received: 0,
    [Symbol.asyncDispose]: async () => {
      for (const socket of sockets) socket.destroy();
      await new Promise((resolve) => server.close(resolve));
      await rm(folder, { recursive: true });
    },
  };
  const server = createServer((socket) => {
    sockets.add(socket);
    socket.on("close", () => sockets.delete(socket));
    socket.on("error", () => socket.destroy());
    const connection: FakeConnection = {
      socket,
      index: agent.connections,
      frame: (kind, value) => socket.write(encodeJsonFrame(kind, value)),
      text: (kind, text) => socket.write(Buffer.concat([encodeHeader(kind, text.length), Buffer.from(text)])),
      raw: (kind, bytes, offset) => {
        const place = offset === undefined ? Buffer.alloc(0) : Buffer.alloc(8);
        if (offset !== undefined) place.writeBigUInt64BE(BigInt(offset));
        socket.write(Buffer.concat([encodeHeader(kind, bytes.length + place.length), place, bytes]));
      },
      answer: (value) => {
        connection.frame(frameKinds.reply, value);
        connection.end();
      },
      end: () => socket.write(encodeHeader(frameKinds.end, 0)),
    };
    agent.connections += 1;
    let waiting = Buffer.alloc(0);
    socket.on("data", (chunk: Buffer) => {
      agent.received += chunk.length;
      waiting = Buffer.concat([waiting, chunk]);
      while (waiting.length >= 5 && waiting.length >= 5 + waiting.readUInt32BE(0)) {
        const kind = waiting[4];
        const payload = waiting.subarray(5, 5 + waiting.readUInt32BE(0));
        waiting = waiting.subarray(5 + payload.length);
        if (kind === frameKinds.hello) {
          connection.frame(frameKinds.welcome, {
            version: 1,
            agent: "fake",
            ...(features === undefined ? {} : { features }),
          });
        } else if (kind === frameKinds.request) {
          const request: Json = JSON.parse(payload.toString());
          agent.requests.push(request);
          onRequest(request, connection);
        } else onRaw(kind ?? 0, payload, connection);
      }
    });
  });
  await new Promise<void>((resolve) => server.listen(agent.path, resolve));
  return agent;
}
