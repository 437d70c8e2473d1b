import { createHash, randomBytes } from "node:crypto";
import type { IncomingMessage } from "node:http";
import net from "node:net";
import { afterEach, beforeEach, describe, expect, test } from "vitest";
import { finish, startCli } from "../../cli/src/testing/run-cli.ts";
import { ConnectionWatch } from "../src/ports/contract/provider/connection-watch.ts";
import { eventually, openRequest, TestClient } from "./support/http.ts";
import { nativeHome } from "./support/native.ts";
import { nativeMissing } from "./support/native-factory.ts";
import { nativePlace, nativeService } from "./support/native-place.ts";
import { startTestServer } from "./support/test-server.ts";

const skip = await nativeMissing();

/** What `seq 1 count` writes, as a hash and a number of bytes. */
function sequence(count: number): { sum: string; bytes: number } {
  const hash = createHash("sha256");
  let bytes = 0;
  for (let from = 1; from <= count; from += 10_000) {
    const to = Math.min(count, from + 9_999);
    const text = Array.from({ length: to - from + 1 }, (_, index) => `${from + index}\n`).join("");
    hash.update(text);
    bytes += text.length;
  }
  return { sum: hash.digest("hex"), bytes };
}

/** Reads a command's output over any number of connections, as a client does that has nothing but offsets. */
class Reader {
  readonly #hash = createHash("sha256");
  seen = 0;
  lost = 0;
  exit: { exit_code: number } | undefined;

  /** Reads until the response ends or breaks; of a line that did not come whole nothing counts. */
  async read(response: IncomingMessage): Promise<void> {
    let rest = "";
    try {
      for await (const chunk of response.setEncoding("utf8")) {
        const parts = (rest + chunk).split("\n");
        rest = parts.pop() ?? "";
        for (const part of parts) this.#take(JSON.parse(part));
      }
    } catch {
      // It broke.
    }
  }

  get sum(): string {
    return this.#hash.digest("hex");
  }

  #take(line: {
    stream: string;
    data: string;
    offset: number;
    lost_bytes?: number;
    exit_code: number;
  }): void {
    this.lost += line.lost_bytes ?? 0;
    if (line.stream === "exit") {
      this.exit = line;
      return;
    }
    const bytes = Buffer.from(line.data, "base64");
    expect(line.offset).toBe(this.seen + (line.lost_bytes ?? 0));
    this.#hash.update(bytes);
    this.seen = line.offset + bytes.length;
  }
}

/** Resolves when the command writes nothing more, because nobody takes it. */
async function waitUntilFull(client: TestClient, exec: string): Promise<void> {
  let before = -1;
  await eventually(async () => {
    await new Promise((resolve) => setTimeout(resolve, 300));
    const { json } = await client.call("GET", exec);
    const still = json.output_bytes === before && json.output_bytes > 0;
    before = json.output_bytes;
    return still ? true : undefined;
  }, 60_000);
}

describe.skipIf(skip !== undefined)(`output${skip === undefined ? "" : ` (skipped: ${skip})`}`, () => {
  describe("of a service that ends", () => {
    let made: Awaited<ReturnType<typeof nativeService>>;
    beforeEach(async () => {
      made = await nativeService({ ALCOVE_SERVER_SHUTDOWN_GRACE: "0s" });
    });
    afterEach(() => made.remove());

    test("under a fast writer and a slow reader: killed and stopped, nothing is lost", async () => {
      const count = 3_500_000;
      const expected = sequence(count);
      const { service } = made;
      const id = await service.client.spawn({ ttl: "10m" });
      const sandbox = `/api/v1/sandboxes/${id}`;
      const exec = `${sandbox}/execs/ex-fastwriter`;
      const reader = new Reader();
      try {
        let { response } = await openRequest(`${service.client.url}${sandbox}/exec`, {
          method: "POST",
          body: {
            command: `seq 1 ${count}; exit 3`,
            exec_id: "ex-fastwriter",
            stream: true,
            encoding: "base64",
          },
        });
        for (const end of ["kill", "stop"] as const) {
          await waitUntilFull(service.client, exec);
          expect((await service.client.call("GET", exec)).json.state).toBe("running");
          await service[end]();
          await reader.read(response);
          await service.start();
          const wanted = `output?follow=true&encoding=base64&from=${reader.seen}`;
          ({ response } = await openRequest(`${service.client.url}${exec}/${wanted}`, { method: "GET" }));
        }
        await reader.read(response);
        expect([reader.seen, reader.lost, reader.exit?.exit_code]).toEqual([expected.bytes, 0, 3]);
        expect(reader.sum).toBe(expected.sum);
      } finally {
        await service.client.call("DELETE", sandbox);
      }
    }, 120_000);
  });

  test("of buffered and streamed commands whose connections to the sandbox break is whole", async () => {
    using connections = new ConnectionWatch();
    await using place = await nativePlace();
    const { server, client, id } = place;
    const count = 1_000_000;
    const expected = sequence(count);
    const command = `seq 1 ${count}; exit 3`;
    const buffered = client.exec(id, { command });
    const { response } = await openRequest(`${server.url}/api/v1/sandboxes/${id}/exec`, {
      method: "POST",
      body: { command, stream: true, encoding: "base64" },
    });
    const reader = new Reader();
    const reading = reader.read(response);
    let ended = false;
    const all = Promise.all([buffered, reading]).finally(() => {
      ended = true;
    });
    let breaks = 0;
    // As often as makes a difference, and with time to go on in between.
    for (; breaks < 8 && !ended; breaks += 1) {
      await new Promise((resolve) => setTimeout(resolve, 40));
      connections.breakLocal();
    }
    const [{ status, json }] = await all;
    expect([status, json.exit_code, json.truncated, json.lost_bytes]).toEqual([200, 3, undefined, undefined]);
    expect(json.stdout.length).toBe(expected.bytes);
    expect(createHash("sha256").update(json.stdout).digest("hex")).toBe(expected.sum);
    expect([reader.seen, reader.lost, reader.exit?.exit_code]).toEqual([expected.bytes, 0, 3]);
    expect(reader.sum).toBe(expected.sum);
    await client.call("DELETE", `/api/v1/sandboxes/${id}`);
  }, 120_000);

  test("of a command that reads as it writes is whole, however much goes through it", async () => {
    await using place = await nativePlace();
    const { server, client, id } = place;
    const all = randomBytes(16 * 1024 * 1024);
    const sumOf = (bytes: Buffer) => createHash("sha256").update(bytes).digest("hex");
    const child = startCli(["exec", "-i", id, "cat"], { url: server.url });
    const pieces: Buffer[] = [];
    child.stdout.on("data", (piece: Buffer) => pieces.push(piece));
    child.stdin.end(all);
    const { code } = await finish(child);
    expect([code, sumOf(Buffer.concat(pieces))]).toEqual([0, sumOf(all)]);

    const part = all.subarray(0, 6 * 1024 * 1024);
    const { status, json } = await client.call("POST", `/api/v1/sandboxes/${id}/exec`, {
      command: "cat",
      stdin: part.toString("base64"),
      stdin_encoding: "base64",
      encoding: "base64",
    });
    expect([status, json.exit_code]).toEqual([200, 0]);
    expect(sumOf(Buffer.from(json.stdout, "base64"))).toBe(sumOf(part));
    await client.call("DELETE", `/api/v1/sandboxes/${id}`);
  }, 60_000);

  test.each([
    ["exec", ["exec"]],
    ["exec -i", ["exec", "-i"]],
  ])(
    "of `alcove %s` whose own connection breaks is whole, or its gap is told",
    async (_name, words) => {
      const home = await nativeHome();
      const sockets = new Set<net.Socket>();
      let upstream = 0;
      const proxy = net.createServer((socket) => {
        const other = net.connect(upstream, "127.0.0.1");
        for (const each of [socket, other]) {
          sockets.add(each);
          each.on("error", () => undefined).on("close", () => sockets.delete(each));
        }
        socket.pipe(other).pipe(socket);
      });
      try {
        await using server = await startTestServer({
          provider: async () => home.open(),
          dataDir: home.dataDir,
        });
        upstream = Number(new URL(server.url).port);
        await new Promise<void>((resolve) => proxy.listen(0, "127.0.0.1", resolve));
        const { port } = proxy.address() as net.AddressInfo;
        const client = new TestClient(server.url);
        const id = await client.spawn({ image: "host", ttl: "10m" });
        const count = 3_000_000;
        const expected = sequence(count);
        const child = startCli([...words, id, `seq 1 ${count}`], { url: `http://127.0.0.1:${port}` });
        child.stdin.end();
        child.stdout.pause();
        const execs = `/api/v1/sandboxes/${id}/execs`;
        const [{ exec_id: execId }] = await eventually(async () => {
          const { json } = await client.call("GET", execs);
          return json.length > 0 ? json : undefined;
        });
        await waitUntilFull(client, `${execs}/${execId}`);
        for (const socket of sockets) socket.destroy();
        const hash = createHash("sha256");
        let bytes = 0;
        child.stdout.on("data", (chunk: Buffer) => {
          hash.update(chunk);
          bytes += chunk.length;
        });
        const finished = finish(child);
        child.stdout.resume();
        const { code, stderr } = await finished;
        const lost = [...stderr.matchAll(/alcove: (\d+) bytes of the command's output are missing/g)]
          .map(([, told]) => Number(told))
          .reduce((sum, told) => sum + told, 0);
        expect([code, bytes + lost]).toEqual([lost > 0 ? 125 : 0, expected.bytes]);
        if (lost === 0) expect(hash.digest("hex")).toBe(expected.sum);
        await client.call("DELETE", `/api/v1/sandboxes/${id}`);
      } finally {
        for (const socket of sockets) socket.destroy();
        proxy.close();
        await home.remove();
      }
    },
    120_000,
  );
});
