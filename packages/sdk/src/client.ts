import type { Duplex } from "node:stream";
import type {
  AcquireRequest,
  AdmissionDecision,
  Diagnostics,
  Event,
  ExecRecord,
  ExecRequest,
  ExecResult,
  ExecStreamChunk,
  Health,
  Liveness,
  Metrics,
  OutputEncoding,
  PoolStatus,
  Preview,
  ProviderDetail,
  ProviderHealth,
  ProviderTestResult,
  PruneResult,
  Readiness,
  Sandbox,
  SandboxState,
  SandboxStats,
  SandboxUsage,
  SnapshotSummary,
  SpawnRequest,
  StartExecRequest,
  StdinRequest,
  StdinResponse,
  Ticket,
} from "@alcove/wire";
import { AuditClient } from "./audit.ts";
import { type EventFilter, eventStream } from "./events.ts";
import type { ExecAttach, ExecSocket, ExecStart } from "./exec-socket.ts";
import { FilesClient } from "./files.ts";
import { KeysClient } from "./keys.ts";
import { readNdjson } from "./lines.ts";
import { type PortAnswer, type PortRequest, requestPort } from "./port-request.ts";
import { QuotasClient } from "./quotas.ts";
import { TemplatesClient } from "./templates.ts";
import { quickMs, Transport, type TransportOptions } from "./transport.ts";
import { WorkersClient } from "./workers.ts";

export interface CallOptions {
  signal?: AbortSignal;
  /** Until the answer begins, milliseconds. */
  timeoutMs?: number;
}

export interface SandboxFilter {
  state?: SandboxState;
  /** Left out: everybody's, whatever `userId` the client has; a key that is bound to an owner sees that one's alone. */
  ownerId?: string;
  name?: string;
  provider?: string;
  metadata?: Readonly<Record<string, string>>;
  limit?: number;
  cursor?: string;
}

/** An image may have to be fetched first. */
const spawnMs = 600_000;

/** One service. Methods throw AlcoveError. Dispose it to close idle connections. */
export class AlcoveClient implements Disposable {
  readonly #transport: Transport;
  readonly files: FilesClient;
  readonly quotas: QuotasClient;
  readonly templates: TemplatesClient;
  readonly audit: AuditClient;
  readonly keys: KeysClient;
  readonly workers: WorkersClient;

  constructor(options: TransportOptions) {
    this.#transport = new Transport(options);
    this.files = new FilesClient(this.#transport);
    this.quotas = new QuotasClient(this.#transport);
    this.templates = new TemplatesClient(this.#transport);
    this.audit = new AuditClient(this.#transport);
    this.keys = new KeysClient(this.#transport);
    this.workers = new WorkersClient(this.#transport);
  }

  [Symbol.dispose](): void {
    this.#transport[Symbol.dispose]();
  }

  async health(options: CallOptions = {}): Promise<Health> {
    return this.#get("/health", options);
  }

  async live(options: CallOptions = {}): Promise<Liveness> {
    return this.#get("/live", options);
  }

  async ready(options: CallOptions = {}): Promise<Readiness> {
    return this.#get("/ready", options);
  }

  async providers(options: CallOptions = {}): Promise<ProviderHealth[]> {
    return this.#get("/providers", options);
  }

  async provider(name: string, options: CallOptions = {}): Promise<ProviderDetail> {
    return this.#get(`/providers/${encodeURIComponent(name)}`, options);
  }

  /** Snapshots of images, newest first; none where no provider makes any. */
  async snapshots(options: CallOptions = {}): Promise<SnapshotSummary[]> {
    return this.#get("/snapshots", options);
  }

  /** VMs and users of the pool; `enabled: false` alone while there is none. */
  async poolStatus(options: CallOptions = {}): Promise<PoolStatus> {
    return this.#get("/pool/status", options);
  }

  /** Counters of the whole service. */
  async metrics(options: CallOptions = {}): Promise<Metrics> {
    return this.#get("/metrics", options);
  }

  /** The same in the text format that Prometheus scrapes. */
  async prometheusMetrics(options: CallOptions = {}): Promise<string> {
    return this.#transport.text({
      method: "GET",
      path: "/metrics/prometheus",
      timeoutMs: options.timeoutMs ?? quickMs,
      signal: options.signal,
    });
  }

  /** What somebody who helps needs to know, fit to be handed on. */
  async diagnostics(options: CallOptions = {}): Promise<Diagnostics> {
    return this.#get("/diagnostics", options);
  }

  /** Checks all of them now: which are healthy. */
  async testProviders(options: CallOptions = {}): Promise<ProviderTestResult> {
    return this.#post("/providers/test", undefined, options);
  }

  async spawn(
    request: SpawnRequest,
    options: CallOptions & { idempotencyKey?: string } = {},
  ): Promise<Sandbox> {
    return (await this.#spawn(request, options)).sandbox;
  }

  /** As `spawn` with this Idempotency-Key. @returns also whether it is the sandbox that an earlier spawn with the key has made. */
  async spawnOnce(
    request: SpawnRequest,
    idempotencyKey: string,
    options: CallOptions = {},
  ): Promise<{ sandbox: Sandbox; replayed: boolean }> {
    if (typeof idempotencyKey !== "string")
      throw new TypeError("spawnOnce() takes its idempotency key as a string, and its options after it");
    return await this.#spawn(request, { ...options, idempotencyKey });
  }

  async #spawn(
    request: SpawnRequest,
    options: CallOptions & { idempotencyKey?: string },
  ): Promise<{ sandbox: Sandbox; replayed: boolean }> {
    const { body, headers } = await this.#transport.json<Sandbox>({
      method: "POST",
      path: "/sandboxes",
      json: request,
      headers: options.idempotencyKey === undefined ? {} : { "idempotency-key": options.idempotencyKey },
      timeoutMs: options.timeoutMs ?? spawnMs,
      signal: options.signal,
    });
    return { sandbox: body, replayed: headers["idempotent-replayed"] === "true" };
  }

  /** The owner's living sandbox of this name, or a new one. Safe to repeat, and for any number at once. */
  async acquire(
    request: AcquireRequest,
    options: CallOptions = {},
  ): Promise<{ sandbox: Sandbox; made: boolean }> {
    const { body, status } = await this.#transport.json<Sandbox>({
      method: "POST",
      path: "/sandboxes/acquire",
      json: request,
      timeoutMs: options.timeoutMs ?? spawnMs,
      signal: options.signal,
    });
    return { sandbox: body, made: status === 201 };
  }

  /** What a spawn would meet; nothing is created. */
  async admission(request: SpawnRequest, options: CallOptions = {}): Promise<AdmissionDecision> {
    return this.#post("/sandboxes/admission", request, options);
  }

  /** Destroys all that have expired, whosever they are. */
  async prune(options: CallOptions = {}): Promise<PruneResult> {
    const { body } = await this.#transport.json<PruneResult>({
      method: "DELETE",
      path: "/sandboxes",
      timeoutMs: options.timeoutMs ?? quickMs * 2,
      signal: options.signal,
    });
    return body;
  }

  async sandbox(id: string, options: CallOptions = {}): Promise<Sandbox> {
    return this.#get(`/sandboxes/${encodeURIComponent(id)}`, options);
  }

  /** One page, newest first. */
  async sandboxes(
    filter: SandboxFilter = {},
    options: CallOptions = {},
  ): Promise<{ items: Sandbox[]; nextCursor: string | undefined }> {
    return this.#page<Sandbox>("/sandboxes", filter, options);
  }

  /** Every sandbox that matches, page by page. */
  allSandboxes(filter: SandboxFilter = {}, options: CallOptions = {}): AsyncGenerator<Sandbox> {
    return pages(filter, (page) => this.sandboxes(page, options));
  }

  /** One page of at most 100, newest first, each with what it uses now; without `stats` where it could not tell. */
  async sandboxStats(
    filter: SandboxFilter = {},
    options: CallOptions = {},
  ): Promise<{ items: SandboxUsage[]; nextCursor: string | undefined }> {
    return this.#page<SandboxUsage>("/sandboxes/stats", filter, options);
  }

  /** Every sandbox that matches with what it uses now, page by page. */
  allSandboxStats(filter: SandboxFilter = {}, options: CallOptions = {}): AsyncGenerator<SandboxUsage> {
    return pages(filter, (page) => this.sandboxStats(page, options));
  }

  async destroy(id: string, options: CallOptions = {}): Promise<void> {
    await this.#transport.json({
      method: "DELETE",
      path: `/sandboxes/${encodeURIComponent(id)}`,
      timeoutMs: options.timeoutMs ?? quickMs * 2,
      signal: options.signal,
    });
  }

  async extend(id: string, ttl: string, options: CallOptions = {}): Promise<Sandbox> {
    return this.#post(`/sandboxes/${encodeURIComponent(id)}/extend`, { ttl }, options);
  }

  async logs(id: string, lines: number, options: CallOptions = {}): Promise<string[]> {
    return this.#get(`/sandboxes/${encodeURIComponent(id)}/logs?lines=${lines}`, options);
  }

  async stats(id: string, options: CallOptions = {}): Promise<SandboxStats> {
    return this.#get(`/sandboxes/${encodeURIComponent(id)}/stats`, options);
  }

  /** The address of a port for a browser, and how long a link to it is good. @param ttl of the link; the service's usual unless given. */
  async previewUrl(id: string, port: number, options: CallOptions & { ttl?: string } = {}): Promise<Preview> {
    const query = options.ttl === undefined ? "" : `?ttl=${encodeURIComponent(options.ttl)}`;
    return this.#get(`/sandboxes/${encodeURIComponent(id)}/preview/${port}${query}`, options);
  }

  /**
   * Asks the program that listens on a port: `requestPort(id, 3000, "/items?page=2")`. Whatever it answers is an answer, its
   * redirects and failures too; the body must be read to its end or destroyed.
   * @throws AlcoveError what the service refuses: `bad_gateway` when nothing listens, `gateway_timeout` when nothing is answered.
   */
  async requestPort(id: string, port: number, path: string, request: PortRequest = {}): Promise<PortAnswer> {
    return await requestPort(this.#transport, { sandboxId: id, port, path }, request);
  }

  /**
   * A TCP connection to a port of a sandbox, as a stream whose directions end by themselves.
   * @throws AlcoveError `bad_gateway` when nothing listens there.
   */
  async openTunnel(id: string, port: number, options: { signal?: AbortSignal } = {}): Promise<Duplex> {
    // Only this call and commands need a WebSocket client.
    const { openTunnel } = await import("./tunnel.ts");
    return await openTunnel({
      url: this.#transport.address(`/sandboxes/${encodeURIComponent(id)}/tunnels/${port}`),
      headers: this.#transport.headers(),
      signal: options.signal,
    });
  }

  /** Runs a command to its end. Takes as long as the command unless `timeoutMs` is given. */
  async exec(
    id: string,
    request: Omit<ExecRequest, "stream">,
    options: CallOptions = {},
  ): Promise<ExecResult> {
    const { body } = await this.#transport.json<ExecResult>({
      method: "POST",
      path: `/sandboxes/${encodeURIComponent(id)}/exec`,
      json: request,
      timeoutMs: options.timeoutMs,
      signal: options.signal,
    });
    return body;
  }

  /** Runs a command and streams its output; the last chunk has stream `exit`, a stream without it was cut. */
  async execStream(
    id: string,
    request: Omit<ExecRequest, "stream">,
    options: CallOptions = {},
  ): Promise<{ execId: string | undefined; chunks: AsyncGenerator<ExecStreamChunk> }> {
    const response = await this.#transport.send({
      method: "POST",
      path: `/sandboxes/${encodeURIComponent(id)}/exec`,
      json: { ...request, stream: true },
      timeoutMs: options.timeoutMs,
      signal: options.signal,
    });
    const execId = response.headers["x-exec-id"];
    return { execId: typeof execId === "string" ? execId : undefined, chunks: readNdjson(response) };
  }

  /**
   * Runs a command over a WebSocket, or goes on with one: standard input, signals and a terminal. When the signal aborts, also
   * later, the command is left, and the service ends it after its grace.
   */
  async openExec(
    id: string,
    start: ExecStart | ExecAttach,
    options: { signal?: AbortSignal } = {},
  ): Promise<ExecSocket> {
    // Only this call needs a WebSocket client.
    const { ExecSocket: socket } = await import("./exec-socket.ts");
    return await socket.open({
      url: this.#transport.address(`/sandboxes/${encodeURIComponent(id)}/exec/ws`),
      headers: this.#transport.headers(),
      start,
      signal: options.signal,
    });
  }

  /**
   * Goes on over a WebSocket with a command that was started before: after its connection broke, or a detached one.
   * @param options.from offset of the first byte wanted: of the last message its `offset` and the bytes of its data.
   * @param options.lossless a detached command, too, waits for this reader while it follows; a service that does not know this
   * refuses it.
   * @param options.input name of an input that an earlier connection had, to go on with it: `ExecSocket.watchInput`.
   */
  async attachExec(
    id: string,
    execId: string,
    options: {
      from?: number;
      lossless?: boolean;
      encoding?: OutputEncoding;
      input?: string;
      signal?: AbortSignal;
    } = {},
  ): Promise<ExecSocket> {
    const { from = 0, lossless, encoding, input, signal } = options;
    const attach = {
      exec_id: execId,
      from,
      ...(lossless === undefined ? {} : { lossless }),
      ...(encoding === undefined ? {} : { encoding }),
      ...(input === undefined ? {} : { input }),
    };
    return await this.openExec(id, attach, signal === undefined ? {} : { signal });
  }

  /** Starts a command that outlives every connection. */
  async startExec(
    id: string,
    request: StartExecRequest,
    options: CallOptions = {},
  ): Promise<{ exec_id: string; pid: number }> {
    return this.#post(`/sandboxes/${encodeURIComponent(id)}/execs`, request, options);
  }

  async execs(id: string, options: CallOptions = {}): Promise<ExecRecord[]> {
    return this.#get(`/sandboxes/${encodeURIComponent(id)}/execs`, options);
  }

  async execRecord(id: string, execId: string, options: CallOptions = {}): Promise<ExecRecord> {
    return this.#get(execPath(id, execId), options);
  }

  /**
   * What a command has written, from an offset on; `follow` goes on until it exits. A detached command waits for no reader,
   * and `lost_bytes` tells what is missing; with `lossless` it waits for this one while it follows.
   */
  async execOutput(
    id: string,
    execId: string,
    options: CallOptions & {
      from?: number;
      follow?: boolean;
      lossless?: boolean;
      encoding?: OutputEncoding;
    } = {},
  ): Promise<AsyncGenerator<ExecStreamChunk>> {
    const { from, follow, lossless, encoding } = options;
    const response = await this.#transport.send({
      method: "GET",
      path: `${execPath(id, execId)}/output`,
      query: { from, follow, lossless, encoding },
      timeoutMs: options.timeoutMs,
      signal: options.signal,
    });
    return readNdjson(response);
  }

  /**
   * Takes as long as the command takes to read it, unless `timeoutMs` is given. With `input` and `offset` it can be repeated.
   * @returns with `input`, how many bytes of it were taken by now.
   */
  async writeStdin(
    id: string,
    execId: string,
    input: StdinRequest,
    options: CallOptions = {},
  ): Promise<StdinResponse> {
    const { body } = await this.#transport.json<StdinResponse>({
      method: "POST",
      path: `${execPath(id, execId)}/stdin`,
      json: input,
      timeoutMs: options.timeoutMs,
      signal: options.signal,
    });
    return body;
  }

  async signalExec(
    id: string,
    execId: string,
    signal: string | number,
    options: CallOptions = {},
  ): Promise<void> {
    await this.#post(`${execPath(id, execId)}/signal`, { signal }, options);
  }

  /** Kills the command's whole tree. */
  async killExec(id: string, execId: string, options: CallOptions = {}): Promise<void> {
    await this.#transport.json({
      method: "DELETE",
      path: execPath(id, execId),
      timeoutMs: options.timeoutMs ?? quickMs,
      signal: options.signal,
    });
  }

  /** For a browser, which cannot send a key with a WebSocket: good for one to this sandbox, within a minute. */
  async ticket(id: string, options: CallOptions = {}): Promise<Ticket> {
    return this.#post("/tickets", { sandbox_id: id }, options);
  }

  /** Events from now on, or from `lastEventId`; comes back after a broken connection without losing any. */
  events(filter: EventFilter = {}): AsyncGenerator<Event> {
    return eventStream(this.#transport, filter);
  }

  async #page<T>(
    path: string,
    filter: SandboxFilter,
    options: CallOptions,
  ): Promise<{ items: T[]; nextCursor: string | undefined }> {
    const metadata = Object.entries(filter.metadata ?? {}).map(
      ([name, value]) => [`metadata.${name}`, value] as const,
    );
    const { body, headers } = await this.#transport.json<T[]>({
      method: "GET",
      path,
      query: {
        state: filter.state,
        owner_id: filter.ownerId,
        name: filter.name,
        provider: filter.provider,
        limit: filter.limit,
        cursor: filter.cursor,
        ...Object.fromEntries(metadata),
      },
      timeoutMs: options.timeoutMs ?? quickMs,
      signal: options.signal,
    });
    const cursor = headers["x-next-cursor"];
    return { items: body, nextCursor: typeof cursor === "string" && cursor !== "" ? cursor : undefined };
  }

  async #get<T>(path: string, options: CallOptions): Promise<T> {
    const [plain = "", query] = path.split("?");
    const { body } = await this.#transport.json<T>({
      method: "GET",
      path: plain,
      query: Object.fromEntries(new URLSearchParams(query)),
      timeoutMs: options.timeoutMs ?? quickMs,
      signal: options.signal,
    });
    return body;
  }

  async #post<T>(path: string, json: unknown, options: CallOptions): Promise<T> {
    const { body } = await this.#transport.json<T>({
      method: "POST",
      path,
      json,
      timeoutMs: options.timeoutMs ?? quickMs,
      signal: options.signal,
    });
    return body;
  }
}

async function* pages<T>(
  filter: SandboxFilter,
  read: (filter: SandboxFilter) => Promise<{ items: T[]; nextCursor: string | undefined }>,
): AsyncGenerator<T> {
  let cursor = filter.cursor;
  do {
    const page = await read({ ...filter, ...(cursor === undefined ? {} : { cursor }) });
    yield* page.items;
    cursor = page.nextCursor;
  } while (cursor !== undefined);
}

function execPath(id: string, execId: string): string {
  return `/sandboxes/${encodeURIComponent(id)}/execs/${encodeURIComponent(execId)}`;
}
