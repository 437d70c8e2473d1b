import { once } from "node:events";
import http from "node:http";
import net from "node:net";
import { afterAll, beforeAll, describe, expect, test, vi } from "vitest";
import { eventually, TestClient } from "../../server/test/support/http.ts";
import { TestPorts } from "../../server/test/support/ports-provider.ts";
import { startTestServer, type TestServer } from "../../server/test/support/test-server.ts";
import { runCli, startCli } from "./testing/run-cli.ts";

// Each command is a process of its own, on a machine that may be busy.
vi.setConfig({ testTimeout: 60_000 });

describe("commands that reach ports", () => {
  const ports = new TestPorts();
  let server: TestServer;
  let id: string;
  const at = () => ({ url: server.url, env: { ALCOVE_API_KEY: "client-key" } });

  beforeAll(async () => {
    server = await startTestServer({ provider: ports.factory, env: { ALCOVE_AUTH_API_KEY: "client-key" } });
    id = await new TestClient(server.url, { "x-api-key": "client-key" }).spawn({ name: "web" });
  });
  afterAll(() => server[Symbol.asyncDispose]());

  test("open prints the link, by name too", async () => {
    const plain = await runCli(["open", "web", "3000", "--ttl", "10m"], at());
    expect(plain.stdout).toMatch(
      new RegExp(`^http://3000-${id}\\.localhost:\\d+/\\?alcove_preview=[\\w.-]+\\n$`),
    );
    const json = await runCli(["open", id, "3000", "--json"], at());
    expect(JSON.parse(json.stdout)).toMatchObject({ port: 3000, access: "signed" });
    const wrong = await runCli(["open", id, "70000"], at());
    expect([wrong.code, wrong.stderr]).toEqual([
      2,
      "alcove: 70000 is not a port: a whole number from 1 to 65535\n",
    ]);
    expect((await runCli(["open", "sb-000000000000", "80"], at())).code).toBe(3);
  });

  test("forward leads connections in, tells why one fails, and ends at Ctrl-C", async () => {
    using _web = await ports.listen(
      3000,
      http.createServer((request, response) => request.pipe(response)),
    );
    using _echo = await ports.listen(
      3001,
      net.createServer({ allowHalfOpen: true }, (socket) => {
        socket.pipe(socket);
      }),
    );
    using _breaks = await ports.listen(
      3002,
      net.createServer((socket) => {
        socket.on("error", () => undefined);
        socket.once("data", () => socket.write("half of it", () => socket.resetAndDestroy()));
      }),
    );
    const child = startCli(["forward", "web", "0:3000", "0:3001", "0:4000", "0:3002"], at());
    let [said, failed] = ["", ""];
    child.stdout.on("data", (text) => {
      said += text;
    });
    child.stderr.on("data", (text) => {
      failed += text;
    });
    const [web = 0, echo = 0, nobody = 0, breaks = 0] = await eventually(() => {
      const found = [...said.matchAll(/127\.0\.0\.1:(\d+) -> sb-\w+ port \d+/g)].map(([, port]) =>
        Number(port),
      );
      return found.length === 4 ? found : undefined;
    }, 30_000);
    const body = "x".repeat(1_000_000);
    const answer = await fetch(`http://127.0.0.1:${web}/`, { method: "POST", body });
    expect((await answer.text()).length).toBe(body.length);

    const socket = net.connect({ port: echo, host: "127.0.0.1", allowHalfOpen: true });
    socket.end("all of it");
    expect(String(Buffer.concat(await socket.toArray()))).toBe("all of it");

    const [refused] = await once(net.connect({ port: nobody, host: "127.0.0.1" }).resume(), "error");
    expect(refused.code).toBe("ECONNRESET");
    await eventually(() => (failed.includes("nothing listens on port 4000") ? true : undefined));

    const cut = net.connect({ port: breaks, host: "127.0.0.1" }).resume();
    cut.write("x");
    const [error] = await once(cut, "error");
    expect(error.code).toBe("ECONNRESET");

    const open = net.connect({ port: echo, host: "127.0.0.1" });
    open.on("error", () => undefined).write("x");
    await once(open, "data");
    const broken = once(open, "error");
    child.kill("SIGINT");
    const [code] = await once(child, "exit");
    expect((await broken)[0].code).toBe("ECONNRESET");
    expect([code, failed.split("\n").length]).toEqual([0, 3]);
    await eventually(() => (ports.open.size === 0 ? true : undefined));
  });

  test("forward ends when a connection comes and the sandbox is gone", async () => {
    const api = new TestClient(server.url, { "x-api-key": "client-key" });
    const ends = await api.spawn();
    const child = startCli(["forward", ends, "0:3000"], at());
    let failed = "";
    child.stderr.on("data", (text) => {
      failed += text;
    });
    const [said] = await once(child.stdout, "data");
    await api.call("DELETE", `/api/v1/sandboxes/${ends}`);
    const closed = once(child, "close", { signal: AbortSignal.timeout(30_000) });
    const port = Number(/:(\d+) ->/.exec(String(said))?.[1]);
    net
      .connect(port, "127.0.0.1")
      .on("error", () => undefined)
      .resume();
    expect(await closed.finally(() => child.kill())).toEqual([3, null]);
    expect(failed).toMatch(new RegExp(`^alcove: .*${ends}.*\n$`));
  });

  test("forward says when the port here is taken, or the sandbox is not there", async () => {
    const taken = net.createServer().listen(0, "127.0.0.1");
    await once(taken, "listening");
    const { port } = taken.address() as net.AddressInfo;
    const first = await runCli(["forward", id, `${port}:80`], at());
    expect([first.code, first.stderr]).toEqual([
      2,
      expect.stringContaining(`port ${port} of this machine is taken`),
    ]);
    taken.close();
    expect((await runCli(["forward", "sb-000000000000", "0:80"], at())).code).toBe(3);
    expect((await runCli(["forward", id, "1:2:3"], at())).code).toBe(2);
  });
});
