import { createServer, type IncomingMessage, type ServerResponse } from "node:http";
import type { AddressInfo, Socket } from "node:net";
import { randomIds } from "../../../src/platform/random-ids.ts";
import type { RuntimeId, RuntimeProvider } from "../../../src/ports/index.ts";
import { ConnectCall, ConnectFailure } from "./connect-wire.ts";
import { EnvdFiles, refuse } from "./envd-files.ts";
import { EnvdProcesses } from "./envd-processes.ts";

/** What the server does with a request instead of answering it. */
export type Misbehaviour =
  | { do: "hang" }
  | { do: "answer"; status: number; headers?: Record<string, string>; body: string }
  /** Does what was asked, and breaks the connection instead of saying so. */
  | { do: "carry out and cut" }
  | { do: "delay"; ms: number }
  /** The beginning of an answer, and no more for as long as anybody waits, or none for ever. */
  | { do: "begin"; type: string; body: string; then: "drip" | "cut" }
  /** The same bytes again and again, as fast as they are taken. */
  | {
      do: "flood";
      type: string;
      headers?: Record<string, string>;
      first?: Buffer;
      body: Buffer;
      /** The body is chunks as HTTP writes them. */
      isChunked?: boolean;
    };

export interface SeenRequest {
  area: "api" | "envd";
  method: string;
  path: string;
  headers: IncomingMessage["headers"];
  body: string;
}

interface Hosted {
  id: string;
  template: string;
  metadata: Record<string, string>;
  envs: Record<string, string>;
  token: string;
  startedAt: Date;
  endAt: Date;
  timer: NodeJS.Timeout;
  runtimeId: RuntimeId;
  processes: EnvdProcesses;
  files: EnvdFiles;
  sockets: Set<Socket>;
}

const envdPort = 49_983;
const envdVersion = "0.6.4";
const defaultTimeoutS = 15;
const longestTimeoutS = 86_400;
const soon = () => ({ signal: AbortSignal.timeout(20_000) });

/**
 * A hosted-sandbox service on loopback that speaks what the package `e2b` speaks: the control API, and envd behind one
 * address that is told the sandbox by header, or by host name. Sandboxes are real ones of the provider it is given.
 */
export class E2bServer implements AsyncDisposable {
  readonly apiKey = `e2b_${"0123456789abcdef".repeat(2)}`;
  readonly seen: SeenRequest[] = [];
  /** Bytes of the longest flood, as far as its connection has taken it. */
  flooded = 0;
  #floods = 0;
  /** Asked for each request before it is answered. */
  misbehave: (request: SeenRequest) => Misbehaviour | undefined = () => undefined;
  /** Told when a request that hangs is given up. */
  onHung: () => void = () => undefined;
  readonly #provider: RuntimeProvider;
  readonly #image: string;
  readonly #template: string;
  readonly #defaultUser: string;
  readonly #hosted = new Map<string, Hosted>();
  readonly #sockets = new Set<Socket>();
  readonly #server = createServer((request, response) => void this.#take(request, response));

  private constructor(options: {
    provider: RuntimeProvider;
    image: string;
    template: string;
    defaultUser: string;
  }) {
    this.#provider = options.provider;
    this.#image = options.image;
    this.#template = options.template;
    this.#defaultUser = options.defaultUser;
    this.#server.on("connection", (socket) => {
      this.#sockets.add(socket);
      socket.once("close", () => this.#sockets.delete(socket));
    });
  }

  /** @param options.template the one template there is; it is `image` of the provider. */
  static async open(options: {
    provider: RuntimeProvider;
    image: string;
    template: string;
    defaultUser: string;
  }): Promise<E2bServer> {
    const server = new E2bServer(options);
    await new Promise<void>((resolve) => server.#server.listen(0, "127.0.0.1", resolve));
    return server;
  }

  get url(): string {
    return `http://127.0.0.1:${(this.#server.address() as AddressInfo).port}`;
  }

  /** Metadata of the sandboxes there are. */
  get sandboxes(): { id: string; metadata: Record<string, string>; endAt: Date }[] {
    return [...this.#hosted.values()].map(({ id, metadata, endAt }) => ({ id, metadata, endAt }));
  }

  /** Breaks every connection. */
  breakAll(): void {
    for (const socket of this.#sockets) socket.destroy();
  }

  /** Ends a sandbox as its timeout would. */
  async end(id: string): Promise<void> {
    const hosted = this.#hosted.get(id);
    if (hosted === undefined) return;
    this.#hosted.delete(id);
    clearTimeout(hosted.timer);
    for (const socket of hosted.sockets) socket.destroy();
    await this.#provider.destroy(hosted.runtimeId, soon());
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.breakAll();
    await new Promise((resolve) => this.#server.close(resolve));
    await Promise.all([...this.#hosted.keys()].map((id) => this.end(id)));
  }

  async #take(request: IncomingMessage, response: ServerResponse): Promise<void> {
    const { pathname, searchParams } = new URL(request.url ?? "/", this.url);
    const byHost = /^(\d+)-([a-z0-9]+)\./.exec(request.headers.host ?? "");
    const sandboxId = byHost?.[2] ?? (request.headers["e2b-sandbox-id"] as string | undefined);
    const area = sandboxId === undefined ? "api" : "envd";
    const seen: SeenRequest = {
      area,
      method: request.method ?? "",
      path: request.url ?? "",
      headers: request.headers,
      body: "",
    };
    this.seen.push(seen);
    const wrong = this.misbehave(seen);
    try {
      if (wrong?.do === "hang") {
        response.once("close", () => this.onHung());
        return;
      }
      if (wrong?.do === "delay") await new Promise((resolve) => setTimeout(resolve, wrong.ms));
      if (wrong?.do === "begin") {
        request.resume();
        response.writeHead(200, { "content-type": wrong.type }).write(wrong.body);
        if (wrong.then === "cut") setTimeout(() => response.destroy(), 20);
        else {
          const drip = setInterval(() => response.write(" "), 20);
          response.once("close", () => clearInterval(drip));
        }
        return;
      }
      if (wrong?.do === "flood") {
        request.resume();
        response.writeHead(200, { "content-type": wrong.type, ...wrong.headers });
        if (wrong.first !== undefined) response.write(wrong.first);
        response.flushHeaders();
        let sent = 0;
        this.#floods += 1;
        const mine = this.#floods;
        const out = wrong.isChunked ? request.socket : response;
        const more = () => {
          while (!response.destroyed) {
            sent += wrong.body.length;
            // One that was broken off may not have noticed yet.
            if (mine === this.#floods) this.flooded = Math.max(this.flooded, sent);
            if (!out.write(wrong.body)) return;
          }
        };
        out.on("drain", more);
        more();
        return;
      }
      if (wrong?.do === "answer") {
        request.resume();
        response.writeHead(wrong.status, { "content-type": "text/html", ...wrong.headers }).end(wrong.body);
        return;
      }
      if (area === "api") {
        for await (const part of request) seen.body += String(part);
        const answer = await this.#api(seen, pathname, searchParams);
        if (wrong?.do === "carry out and cut") request.socket.destroy();
        else if (answer === undefined) response.writeHead(204).end();
        else {
          const { status = 200, headers, json } = answer;
          response
            .writeHead(status, { "content-type": "application/json", ...headers })
            .end(JSON.stringify(json));
        }
        return;
      }
      const port = Number(byHost?.[1] ?? request.headers["e2b-sandbox-port"]);
      await this.#envd(request, response, { sandboxId: sandboxId ?? "", port, pathname, searchParams });
    } catch (error) {
      if (!response.headersSent) refuse(response, 500, `internal: ${error}`);
      else response.destroy();
    }
  }

  async #api(
    { method, headers, body }: SeenRequest,
    pathname: string,
    query: URLSearchParams,
  ): Promise<{ status?: number; headers?: Record<string, string>; json: unknown } | undefined> {
    const failure = (status: number, message: string) => ({ status, json: { code: status, message } });
    if (headers["x-api-key"] !== this.apiKey) return failure(401, `Invalid API key ${headers["x-api-key"]}`);
    const [, id, action] = /^(?:\/v2)?\/sandboxes(?:\/([^/]+))?(?:\/([^/]+))?$/.exec(pathname) ?? [];
    const request = body === "" ? {} : (JSON.parse(body) as Record<string, never>);
    if (id === undefined && method === "POST") return await this.#create(request);
    if (id === undefined && method === "GET") return this.#list(query);
    const hosted = this.#hosted.get(id ?? "");
    if (hosted === undefined) return failure(404, `Sandbox ${id} not found`);
    if (method === "DELETE") {
      await this.end(hosted.id);
      return undefined;
    }
    if (method === "GET") return { json: this.#describe(hosted) };
    const timeoutS = Number(request.timeout ?? defaultTimeoutS);
    if (timeoutS > longestTimeoutS) return failure(400, `Timeout cannot be greater than 24 hours`);
    if (action === "timeout") {
      this.#arm(hosted, timeoutS);
      return undefined;
    }
    if (action === "connect") {
      // Of one that runs it is only made longer.
      if (Date.now() + timeoutS * 1_000 > hosted.endAt.getTime()) this.#arm(hosted, timeoutS);
      return { json: this.#access(hosted) };
    }
    return failure(404, "no such route");
  }

  async #create(request: {
    templateID?: string;
    metadata?: Record<string, string>;
    envVars?: Record<string, string>;
    timeout?: number;
  }): Promise<{ status: number; json: unknown }> {
    const { templateID = "", metadata = {}, envVars = {}, timeout = defaultTimeoutS } = request;
    if (templateID !== this.#template)
      return { status: 404, json: { code: 404, message: `template '${templateID}' not found` } };
    if (timeout > longestTimeoutS)
      return { status: 400, json: { code: 400, message: "Timeout cannot be greater than 24 hours" } };
    const spec = {
      runtimeId: randomIds.runtimeId(),
      sandboxId: randomIds.sandboxId(),
      image: this.#image,
      memoryMb: 512,
      vcpus: 1,
      env: {},
      user: this.#defaultUser,
      expiresInMs: null,
      metadata: {},
    };
    await this.#provider.spawn(spec, soon());
    const operations = this.#provider.sandbox(spec.runtimeId);
    const names = { users: new Map<number, string>(), groups: new Map<number, string>() };
    for (const [file, map] of [
      ["/etc/passwd", names.users],
      ["/etc/group", names.groups],
    ] as const) {
      const { body } = await operations.files.read(file, soon());
      const text = Buffer.concat(await Array.fromAsync(body as AsyncIterable<Buffer>)).toString();
      for (const [name = "", , number] of text.split("\n").map((line) => line.split(":")))
        if (number !== undefined) map.set(Number(number), name);
    }
    const hosted: Hosted = {
      id: randomIds.secret(10),
      template: templateID,
      metadata,
      envs: envVars,
      token: randomIds.secret(16),
      startedAt: new Date(),
      endAt: new Date(),
      timer: setTimeout(() => undefined, 0),
      runtimeId: spec.runtimeId,
      processes: new EnvdProcesses(operations),
      files: new EnvdFiles(operations, names),
      sockets: new Set(),
    };
    // What the sandboxes of the provider below have by themselves, those of a hosted service have not.
    await hosted.processes.run("rm -rf /workspace");
    this.#hosted.set(hosted.id, hosted);
    this.#arm(hosted, timeout);
    return { status: 201, json: this.#access(hosted) };
  }

  #list(query: URLSearchParams): { headers?: Record<string, string>; json: unknown } {
    const wanted = [...new URLSearchParams(query.get("metadata") ?? "")].map(
      ([key, value]) => [decodeURIComponent(key), decodeURIComponent(value)] as const,
    );
    const found = [...this.#hosted.values()]
      .filter(({ metadata }) => wanted.every(([key, value]) => metadata[key] === value))
      .map((hosted) => this.#describe(hosted));
    const from = Number(query.get("nextToken") ?? 0);
    const limit = Number(query.get("limit") ?? 100);
    const more = from + limit < found.length;
    return {
      ...(more && { headers: { "x-next-token": String(from + limit) } }),
      json: found.slice(from, from + limit),
    };
  }

  #describe({ id, template, metadata, startedAt, endAt }: Hosted): object {
    return {
      sandboxID: id,
      templateID: template,
      clientID: "client",
      metadata,
      startedAt: startedAt.toISOString(),
      endAt: endAt.toISOString(),
      state: "running",
      cpuCount: 2,
      memoryMB: 512,
      diskSizeMB: 1024,
      envdVersion,
    };
  }

  #access({ id, template, token }: Hosted): object {
    return {
      sandboxID: id,
      templateID: template,
      clientID: "client",
      envdVersion,
      envdAccessToken: token,
      domain: null,
    };
  }

  #arm(hosted: Hosted, timeoutS: number): void {
    clearTimeout(hosted.timer);
    hosted.endAt = new Date(Date.now() + timeoutS * 1_000);
    hosted.timer = setTimeout(() => void this.end(hosted.id), timeoutS * 1_000);
    hosted.timer.unref();
  }

  async #envd(
    request: IncomingMessage,
    response: ServerResponse,
    target: { sandboxId: string; port: number; pathname: string; searchParams: URLSearchParams },
  ): Promise<void> {
    const hosted = this.#hosted.get(target.sandboxId);
    if (hosted === undefined || target.port !== envdPort) {
      const message = hosted === undefined ? "The sandbox was not found" : "The port is not open";
      response
        .writeHead(502, { "content-type": "application/json" })
        .end(JSON.stringify({ sandboxId: target.sandboxId, message, code: 502 }));
      return;
    }
    if (target.pathname === "/health") {
      response.writeHead(204).end();
      return;
    }
    if (request.headers["x-access-token"] !== hosted.token) {
      refuse(response, 401, `unauthorized access, token ${request.headers["x-access-token"]}`);
      return;
    }
    hosted.sockets.add(request.socket);
    const closed = new AbortController();
    response.once("close", () => {
      closed.abort();
      hosted.sockets.delete(request.socket);
    });
    const user = this.#user(request, target.searchParams);
    const [, service, method] =
      /^\/(process\.Process|filesystem\.Filesystem)\/(\w+)$/.exec(target.pathname) ?? [];
    if (service === undefined || method === undefined) {
      const path = target.searchParams.get("path") ?? "";
      if (target.pathname !== "/files") refuse(response, 404, "not found");
      else if (request.method === "GET") await hosted.files.download(path, response);
      else await hosted.files.upload(path, user ?? this.#defaultUser, request, response);
      return;
    }
    const call = await ConnectCall.read(request, response);
    try {
      if (user === undefined) throw new ConnectFailure("unauthenticated", "invalid username");
      if (service === "filesystem.Filesystem")
        await hosted.files.handle(method, call, { user, closed: closed.signal });
      else {
        const given = Number(request.headers["connect-timeout-ms"] ?? 0);
        const timeoutMs = given > 0 ? given : 86_400_000;
        await hosted.processes.handle(method, call, {
          user,
          defaultEnv: hosted.envs,
          timeoutMs,
          closed: closed.signal,
        });
      }
    } catch (error) {
      if (closed.signal.aborted) return;
      call.fail(error instanceof ConnectFailure ? error : new ConnectFailure("unknown", String(error)));
    }
  }

  /** @returns undefined for a user the sandbox does not have. */
  #user(request: IncomingMessage, query: URLSearchParams): string | undefined {
    const basic = /^Basic (.+)$/.exec(request.headers.authorization ?? "")?.[1];
    const named = basic === undefined ? "" : Buffer.from(basic, "base64").toString().split(":")[0];
    const user = named || query.get("username") || this.#defaultUser;
    return user === "root" || user === this.#defaultUser ? user : undefined;
  }
}
