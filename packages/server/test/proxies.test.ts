import { type ChildProcess, spawn, spawnSync } from "node:child_process";
import { createHash, randomBytes } from "node:crypto";
import { readFileSync } from "node:fs";
import { mkdir, mkdtemp, rm, writeFile } from "node:fs/promises";
import { get, type IncomingMessage } from "node:http";
import { type RequestOptions, request } from "node:https";
import { createServer } from "node:net";
import { tmpdir } from "node:os";
import path from "node:path";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { WebSocket } from "ws";
import { loadConfig } from "../src/config/load.ts";
import { type RunningService, serve } from "../src/main.ts";
import { silentLogger } from "../src/platform/logger.ts";
import { projectRoot } from "./support/agent-binary.ts";
import { eventually, TestClient } from "./support/http.ts";
import { nativeMissing } from "./support/native-factory.ts";
import { findProgram } from "./support/programs.ts";

const host = "alcove.example.com";
const key = "key-of-the-client-0123456789";
const nativeReason = await nativeMissing();

interface Ports {
  http: number;
  https: number;
  service: number;
}

/** A proxy, started from the example that is shipped, with nothing changed but where things are. */
interface Proxy {
  name: "nginx" | "caddy";
  example: string;
  start(example: string, options: { home: string; ports: Ports }): Promise<ChildProcess>;
  /** What of the example is replaced, and by what. */
  places(ports: Ports): [string, string][];
}

const proxies: Proxy[] = [
  {
    name: "nginx",
    example: "deploy/nginx/alcove.conf",
    places: ({ http, https }) => [
      ["listen 80;", `listen 127.0.0.1:${http};`],
      ["listen 443 ssl", `listen 127.0.0.1:${https} ssl`],
    ],
    start: async (example, { home }) => {
      const temporary = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .map((name) => `${name}_temp_path ${home}/${name};`)
        .join(" ");
      await writeFile(path.join(home, "example.conf"), example);
      await writeFile(
        path.join(home, "nginx.conf"),
        `${process.getuid?.() === 0 ? "user root;" : ""} worker_processes 1; pid ${home}/nginx.pid;
         error_log ${home}/error.log; events {}
         http { access_log off; ${temporary} include ${home}/example.conf; }`,
      );
      return spawn(
        findProgram("nginx") ?? "nginx",
        ["-p", home, "-c", `${home}/nginx.conf`, "-g", "daemon off;"],
        { stdio: "inherit" },
      );
    },
  },
  {
    name: "caddy",
    example: "deploy/caddy/Caddyfile",
    places: () => [],
    start: async (example, { home, ports }) => {
      const file = path.join(home, "Caddyfile");
      const where = `{\n\tadmin off\n\thttp_port ${ports.http}\n\thttps_port ${ports.https}\n\tdefault_bind 127.0.0.1\n\tskip_install_trust\n}\n`;
      await writeFile(file, where + example);
      return spawn(findProgram("caddy") ?? "caddy", ["run", "--config", file, "--adapter", "caddyfile"], {
        env: { PATH: process.env.PATH, HOME: home, XDG_DATA_HOME: home, XDG_CONFIG_HOME: home },
        stdio: "ignore",
      });
    },
  },
];

for (const proxy of proxies) {
  const missing =
    nativeReason ??
    ([proxy.name, "openssl"].filter((name) => findProgram(name) === undefined).join(", ") || undefined);
  const title = `the example of ${proxy.name}`;
  describe.skipIf(missing !== undefined)(
    missing === undefined ? title : `${title} (not here: ${missing})`,
    () => {
      let home: string;
      let ca: Buffer;
      let ports: Ports;
      let service: RunningService;
      let child: ChildProcess | undefined;
      let direct: TestClient;

      beforeAll(async () => {
        home = await mkdtemp(path.join(tmpdir(), `alcove-${proxy.name}-`));
        await mkdir(path.join(home, "tls"));
        ports = { http: await freePort(), https: await freePort(), service: 0 };
        const made = spawnSync(
          "openssl",
          [
            ..."req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=test".split(
              " ",
            ),
            "-addext",
            `subjectAltName=DNS:${host},DNS:*.preview.example.com`,
            "-keyout",
            `${home}/tls/key.pem`,
            "-out",
            `${home}/tls/fullchain.pem`,
          ],
          { encoding: "utf8" },
        );
        expect(made.status, made.stderr).toBe(0);
        ca = readFileSync(`${home}/tls/fullchain.pem`);
        service = await serve({
          config: loadConfig({
            cwd: home,
            env: {
              ALCOVE_DATA_DIR: path.join(home, "data"),
              ALCOVE_SERVER_PORT: "0",
              ALCOVE_SERVER_PUBLIC_URL: `https://${host}`,
              ALCOVE_SERVER_PREVIEW_DOMAIN: "preview.example.com",
              ALCOVE_SERVER_TRUSTED_PROXIES: "127.0.0.1",
              ALCOVE_SERVER_DESTROY_ON_EXIT: "true",
              ALCOVE_AUTH_API_KEY: key,
              ALCOVE_PROVIDERS_DEFAULT: "native",
              ALCOVE_PROVIDERS_NATIVE_DISK_MB: "0",
              ALCOVE_PROVIDERS_NATIVE_MIN_FREE_MB: "0",
            },
          }),
          logger: silentLogger,
        });
        await service.ready;
        direct = new TestClient(service.url, { "x-api-key": key });
        ports.service = Number(new URL(service.url).port);
        let example = readFileSync(path.join(projectRoot, proxy.example), "utf8");
        for (const [from, to] of [
          ["127.0.0.1:7423", `127.0.0.1:${ports.service}`] as const,
          ["/etc/alcove/tls/", `${home}/tls/`] as const,
          ...proxy.places(ports),
        ]) {
          expect(example).toContain(from);
          example = example.replaceAll(from, to);
        }
        child = await proxy.start(example, { home, ports });
        await eventually(async () =>
          ask("GET", "/api/v1/live").then(
            ({ statusCode }) => statusCode === 200 || undefined,
            () => undefined,
          ),
        );
      });

      afterAll(async () => {
        if (child !== undefined && child.exitCode === null) {
          const gone = new Promise((resolve) => child?.once("exit", resolve));
          child.kill("SIGTERM");
          const slow = setTimeout(() => child?.kill("SIGKILL"), 5_000);
          await gone;
          clearTimeout(slow);
        }
        await service?.close();
        await rm(home, { recursive: true, force: true });
      });

      /** The answer's head; its body is read by whoever asked. */
      function ask(
        method: string,
        at: string,
        options: { body?: Buffer | string; headers?: Record<string, string>; host?: string } = {},
      ): Promise<IncomingMessage> {
        const name = options.host ?? host;
        const settings: RequestOptions = {
          host: "127.0.0.1",
          port: ports.https,
          servername: name,
          ca,
          method,
          path: at,
          agent: false,
          headers: { host: name, "x-api-key": key, ...options.headers },
        };
        return new Promise((resolve, reject) => {
          const asked = request(settings, resolve);
          asked.on("error", reject);
          asked.end(options.body);
        });
      }
      const askJson = (method: string, at: string, body: unknown) =>
        ask(method, at, { body: JSON.stringify(body), headers: { "content-type": "application/json" } });

      test("output and events arrive while the command runs", async () => {
        const events = await ask("GET", "/api/v1/events");
        const id = await direct.spawn({ image: "host" });
        expect(await until(events, "sandbox.running")).toContain(id);
        events.destroy();
        const stream = await askJson("POST", `/api/v1/sandboxes/${id}/exec`, {
          command: "echo first; while [ ! -e /tmp/go ]; do sleep 0.05; done; echo last",
          stream: true,
        });
        expect(await until(stream, "first")).not.toContain("last");
        expect((await direct.exec(id, { command: "touch /tmp/go" })).status).toBe(200);
        expect(await until(stream, '"exit"')).toContain("last");
      });

      test("an interactive command goes through", async () => {
        const id = await direct.spawn({ image: "host" });
        const settings = { ca, servername: host, headers: { host, "x-api-key": key } };
        const at = `wss://127.0.0.1:${ports.https}/api/v1/sandboxes/${id}/exec/ws`;
        const socket = new WebSocket(at, [], settings);
        const messages: { type: string; data?: string; exit_code?: number }[] = [];
        const ended = new Promise((resolve, reject) => {
          socket.on("error", reject);
          socket.on("close", resolve);
        });
        socket.on("open", () => {
          socket.send(JSON.stringify({ type: "start", command: "read line; echo got $line; exit 3" }));
          socket.send(JSON.stringify({ type: "stdin", data: "hello\n" }));
        });
        socket.on("message", (text) => messages.push(JSON.parse(String(text))));
        await ended;
        expect(messages).toContainEqual(expect.objectContaining({ type: "stdout", data: "got hello\n" }));
        expect(messages).toContainEqual(expect.objectContaining({ type: "exit", exit_code: 3 }));
      });

      test("32 MiB go in and come out", async () => {
        const id = await direct.spawn({ image: "host" });
        const content = randomBytes(32 * 2 ** 20);
        const at = `/api/v1/sandboxes/${id}/files?path=/workspace/large`;
        const put = await ask("PUT", at, {
          body: content,
          headers: { "content-type": "application/octet-stream" },
        });
        expect(put.statusCode).toBe(200);
        put.resume();
        const hash = createHash("sha256");
        for await (const chunk of await ask("GET", at)) hash.update(chunk);
        expect(hash.digest("hex")).toBe(createHash("sha256").update(content).digest("hex"));
      });

      test("the name that was asked for arrives, and the client's own address, not the one it claims", async () => {
        const id = await direct.spawn({ image: "host" });
        const name = `3000-${id}.preview.example.com`;
        const through = await bodyOf(await ask("GET", "/", { host: name }));
        const { hostname, port } = new URL(service.url);
        const beside = await new Promise<IncomingMessage>((resolve, reject) =>
          get({ hostname, port, path: "/", headers: { host: name, "x-api-key": key } }, resolve).on(
            "error",
            reject,
          ),
        );
        const wanted = await bodyOf(beside);
        expect({ ...through, body: unnumbered(through.body) }).toEqual({
          ...wanted,
          body: unnumbered(wanted.body),
        });
        const elsewhere = await bodyOf(await ask("GET", "/"));
        expect(unnumbered(elsewhere.body)).not.toBe(unnumbered(wanted.body));
        const quota = await ask("GET", "/api/v1/admin/quotas", {
          headers: { "x-forwarded-for": "203.0.113.9" },
        });
        expect(quota.statusCode).toBe(200);
        quota.resume();
        const records = await eventually(async () => {
          const { json } = await direct.call("GET", "/api/v1/admin/audit?path=/admin/quotas");
          return json.length > 0 ? json : undefined;
        });
        expect(records[0].remote_addr).toBe("127.0.0.1");
        const claimed = await direct.call("GET", "/api/v1/admin/quotas", undefined, {
          "x-forwarded-for": "203.0.113.10",
        });
        // The service does believe its proxies: what is asserted above is the proxy's doing.
        expect(claimed.status).toBe(200);
        await eventually(async () => {
          const { json } = await direct.call("GET", "/api/v1/admin/audit?path=/admin/quotas");
          return json.some((record: { remote_addr: string }) => record.remote_addr === "203.0.113.10")
            ? true
            : undefined;
        });
      });

      test("plain HTTP is sent to HTTPS", async () => {
        const answer = await new Promise<IncomingMessage>((resolve, reject) => {
          get({ host: "127.0.0.1", port: ports.http, path: "/api/v1/live", headers: { host } }, resolve).on(
            "error",
            reject,
          );
        });
        answer.resume();
        expect([301, 308]).toContain(answer.statusCode);
        expect(answer.headers.location).toMatch(/^https:\/\/alcove\.example\.com/);
      });
    },
  );
}

async function bodyOf(answer: IncomingMessage): Promise<{ status: number | undefined; body: string }> {
  let body = "";
  for await (const chunk of answer) body += String(chunk);
  return { status: answer.statusCode, body };
}

/** Without the numbers of requests. */
const unnumbered = (text: string) => text.replaceAll(/req-[0-9a-f]+-\d+/g, "req-");

/** Reads on until the text is there. */
async function until(stream: IncomingMessage, wanted: string): Promise<string> {
  let text = "";
  while (!text.includes(wanted)) {
    const chunk = stream.read() as Buffer | null;
    if (chunk !== null) text += chunk.toString();
    else if (stream.readableEnded) throw new Error(`the stream ended without ${wanted}: ${text}`);
    else await new Promise((resolve) => stream.once("readable", resolve).once("end", resolve));
  }
  return text;
}

function freePort(): Promise<number> {
  return new Promise((resolve) => {
    const server = createServer().listen(0, "127.0.0.1", () => {
      const { port } = server.address() as { port: number };
      server.close(() => resolve(port));
    });
  });
}
