import { type ChildProcess, spawn } from "node:child_process";
import { once } from "node:events";
import { mkdtemp, rm } from "node:fs/promises";
import http from "node:http";
import { tmpdir } from "node:os";
import path from "node:path";
import { expect, test } from "vitest";
import { WebSocketServer } from "ws";
import { TestClient } from "./support/http.ts";
import { TestPorts } from "./support/ports-provider.ts";
import { findProgram } from "./support/programs.ts";
import { describeWith } from "./support/requirements.ts";
import { startTestServer } from "./support/test-server.ts";

const uploadBytes = 8_000_000;

/** A browser of its own, with nothing remembered. */
async function browse(url: string): Promise<AsyncDisposable> {
  const profile = await mkdtemp(path.join(tmpdir(), "alcove-chromium-"));
  const child: ChildProcess = spawn(
    findProgram("chromium") ?? "chromium",
    [
      ...["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"],
      ...["--no-proxy-server", "--disable-background-networking", "--disable-component-update"],
      ...[`--user-data-dir=${profile}`, url],
    ],
    { stdio: "ignore", detached: true },
  );
  const exited = once(child, "exit");
  return {
    async [Symbol.asyncDispose]() {
      // Its own processes and no others: they are a group of their own.
      if (child.pid !== undefined && child.exitCode === null) process.kill(-child.pid, "SIGKILL");
      await exited;
      await rm(profile, { recursive: true, force: true, maxRetries: 5 });
    },
  };
}

/** Programs whose pages report what the browser let them do. */
class Pages {
  readonly #reports = new Map<string, PromiseWithResolvers<Record<string, unknown>>>();
  readonly #sockets = new WebSocketServer({ noServer: true });

  report(name: string): Promise<Record<string, unknown>> {
    return this.#of(name).promise;
  }

  server(name: string, script: string): http.Server {
    const server = http.createServer(
      (request, response) => void this.#answer(request, response, { name, script }),
    );
    server.on("upgrade", (request, socket, head) =>
      this.#sockets.handleUpgrade(request, socket, head, (client) => {
        client.on("message", (data) => client.send(`echo ${data}`));
      }),
    );
    return server;
  }

  #of(name: string): PromiseWithResolvers<Record<string, unknown>> {
    const known = this.#reports.get(name) ?? Promise.withResolvers<Record<string, unknown>>();
    this.#reports.set(name, known);
    return known;
  }

  async #answer(
    request: http.IncomingMessage,
    response: http.ServerResponse,
    { name, script }: { name: string; script: string },
  ): Promise<void> {
    const body = Buffer.concat(await request.toArray());
    if (request.url === "/upload") response.end(String(body.length));
    else if (request.url === "/report") {
      response.end();
      this.#of(name).resolve(JSON.parse(body.toString()));
    } else if (request.url?.startsWith("/page")) {
      response.setHeader("content-type", "text/html");
      response.setHeader("set-cookie", [`of_${name}=1; Domain=localhost; Path=/`, "seen=1; Path=/"]);
      const { cookie = "", host } = request.headers;
      response.end(
        `<!doctype html><script type="module">
        const report = {cookie: ${JSON.stringify(cookie)}, host: ${JSON.stringify(host)}};
        const tried = async (name, act) => { try { report[name] = await act(); } catch (error) { report[name] = "failed: " + error.name; } };
        ${script}
        await fetch("/report", {method: "POST", body: JSON.stringify(report)});
        </script>`,
      );
    } else response.writeHead(404).end();
  }
}

const toSocket = `await tried("socket", () => new Promise((resolve, reject) => {
  const socket = new WebSocket("ws://" + location.host + "/ws");
  socket.onopen = () => socket.send("hello");
  socket.onmessage = ({data}) => resolve(data);
  socket.onerror = () => reject(new Error("no socket"));
}));`;

await describeWith(["chromium"], "previews in a browser", () => {
  test("a page, its WebSocket and its uploads work; it commands no API and shares no cookie", {
    timeout: 90_000,
  }, async () => {
    const ports = new TestPorts();
    await using server = await startTestServer({ provider: ports.factory });
    const api = new TestClient(server.url);
    const id = await api.spawn();
    const { port } = new URL(server.url);
    const pages = new Pages();
    const apiUrl = `http://localhost:${port}/api/v1/sandboxes`;
    const script = `
      ${toSocket}
      await tried("upload", async () => (await fetch("/upload", {method: "POST", body: new Uint8Array(${uploadBytes})})).text());
      document.cookie = "planted=1; Domain=localhost; Path=/";
      document.cookie = "own=1; Path=/";
      report.cookies = document.cookie;
      await tried("read", async () => (await fetch(${JSON.stringify(apiUrl)})).status);
      await tried("command", async () => (await fetch(${JSON.stringify(apiUrl)}, {method: "POST", headers: {"content-type": "application/json"}, body: "{}"})).status);
      await tried("blind", async () => (await fetch(${JSON.stringify(apiUrl)}, {method: "POST", mode: "no-cors", body: "{}"})).type);
      await tried("path", async () => (await fetch(${JSON.stringify(`${apiUrl}/${id}/ports/3001/page`)}, {headers: {"x-alcove-client": "1"}})).status);
      await tried("events", () => new Promise((resolve, reject) => {
        const source = new EventSource("http://localhost:${port}/api/v1/events");
        source.onopen = () => resolve("open");
        source.onerror = () => reject(new Error("closed"));
      }));
      await tried("exec", () => new Promise((resolve, reject) => {
        const socket = new WebSocket("ws://localhost:${port}/api/v1/sandboxes/${id}/exec/ws");
        socket.onopen = () => resolve("open");
        socket.onerror = () => reject(new Error("closed"));
      }));
      setTimeout(() => { location.href = "http://3001-${id}.localhost:${port}/page"; }, 100);
    `;
    using _first = await ports.listen(3000, pages.server("first", script));
    using _second = await ports.listen(3001, pages.server("second", "report.cookies = document.cookie;"));
    const before = (await api.call("GET", "/api/v1/sandboxes")).json.length;
    await using _browser = await browse(`http://3000-${id}.localhost:${port}/page`);
    const first = await pages.report("first");
    expect(first).toMatchObject({
      host: `3000-${id}.localhost:${port}`,
      socket: "echo hello",
      upload: String(uploadBytes),
      read: "failed: TypeError",
      command: "failed: TypeError",
      path: "failed: TypeError",
      events: "failed: Error",
      exec: "failed: Error",
    });
    // Its own, which lost its Domain, and not what it planted for others.
    expect(String(first.cookies).split("; ").sort()).toEqual(["of_first=1", "own=1", "seen=1"]);
    const second = await pages.report("second");
    expect(second.cookie).toBe("");
    expect(String(second.cookies).split("; ").sort()).toEqual(["of_second=1", "seen=1"]);
    expect((await api.call("GET", "/api/v1/sandboxes")).json.length).toBe(before);
  });

  test("a link opens a preview, and neither the page nor its program has it", {
    timeout: 90_000,
  }, async () => {
    const ports = new TestPorts();
    await using server = await startTestServer({
      provider: ports.factory,
      env: { ALCOVE_AUTH_API_KEY: "client-key" },
    });
    const api = new TestClient(server.url, { "x-api-key": "client-key" });
    const id = await api.spawn();
    const pages = new Pages();
    const script = `
      ${toSocket}
      report.location = location.href;
      report.referrer = document.referrer;
      report.cookies = document.cookie;
      await tried("other", async () => (await fetch("http://3001-${id}.localhost:" + location.port + "/page", {mode: "no-cors", credentials: "include"})).type);
    `;
    using _program = await ports.listen(3000, pages.server("signed", script));
    let asked = 0;
    using _other = await ports.listen(
      3001,
      http.createServer((_request, response) => {
        asked += 1;
        response.end();
      }),
    );
    const { json } = await api.call("GET", `/api/v1/sandboxes/${id}/preview/3000`);
    const link = new URL(json.url.replace("127.0.0.1", "localhost"));
    link.pathname = "/page";
    await using _browser = await browse(link.href);
    const told = await pages.report("signed");
    expect(told).toMatchObject({
      cookie: "",
      socket: "echo hello",
      location: `${link.origin}/page`,
      referrer: "",
    });
    expect(String(told.cookies).split("; ").sort()).toEqual(["of_signed=1", "seen=1"]);
    expect(asked).toBe(0);
  });
});
