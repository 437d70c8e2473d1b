import { EventEmitter } from "node:events";
import {
  createServer,
  type IncomingMessage,
  maxHeaderSize,
  type Server,
  type ServerOptions,
  type ServerResponse,
} from "node:http";
import type { Socket } from "node:net";
import type { Duplex } from "node:stream";
import type { ErrorCode } from "@alcove/wire";
import cors, { type FastifyCorsOptions, type FastifyCorsOptionsDelegateCallback } from "@fastify/cors";
import type { TypeBoxTypeProvider } from "@fastify/type-provider-typebox";
import websocket from "@fastify/websocket";
import {
  type FastifyReply,
  type FastifyRequest,
  type FastifyServerFactory,
  fastify,
  LogController,
} from "fastify";
import { anybody, localUser } from "../core/keys/principal.ts";
import { ShuttingDown } from "../platform/deadline.ts";
import { FairTurns } from "../platform/fair-turns.ts";
import type { Logger } from "../platform/logger.ts";
import { setReadAhead } from "../platform/read-ahead.ts";
import { ReadTurns } from "../platform/read-turns.ts";
import { withinRequest } from "../platform/request-scope.ts";
import type { Clock } from "../ports/clock.ts";
import { BadRequest, DomainError } from "../ports/errors.ts";
import { accessOf, checkAccess } from "./access.ts";
import { AccessLog } from "./access-log.ts";
import { addressOf } from "./address.ts";
import { answerHeaders } from "./answer-headers.ts";
import { AuditTrail } from "./audit-trail.ts";
import { authenticate, authenticateByTicket, chooseProtocol } from "./auth.ts";
import { usualBodyBytes } from "./body-limits.ts";
import { BrowserGuard } from "./browser-guard.ts";
import { ConnectionLanes } from "./connection-lanes.ts";
import { endConnection } from "./end-connection.ts";
import { errorHandler, httpStatus, pathOf, toDomainError } from "./error-map.ts";
import { serializersOnFirstUse } from "./first-use.ts";
import { JoinedRequest } from "./joined-request.ts";
import { JsonBodies } from "./json-bodies.ts";
import { openapiDocument } from "./openapi.ts";
import { type KeyCheck, portHeaders } from "./previews/carried-headers.ts";
import { Clients } from "./previews/clients.ts";
import { PortProxy } from "./previews/port-proxy.ts";
import { PreviewHosts } from "./previews/preview-hosts.ts";
import { RequestLimit } from "./rate-limit.ts";
import { readQuery } from "./read-query.ts";
import { referencePage } from "./reference-page.ts";
import { bodyIsUnderWay, dropUnreadBody, endUnlessComplete } from "./refused-body.ts";
import { hasCodedBody, lacksOneHost, mostHeaders, refuseHead } from "./refused-head.ts";
import { CallsUnderWay, decorateCallerSignal, requestIds } from "./request-context.ts";
import { traceRequests } from "./request-spans.ts";
import { RouteTable } from "./route-table.ts";
import { auditRoutes } from "./routes/audit.ts";
import { eventRoutes } from "./routes/events.ts";
import { execSocketRoute } from "./routes/exec-socket.ts";
import { execRoutes } from "./routes/execs.ts";
import { fileRoutes } from "./routes/files.ts";
import { keyRoutes } from "./routes/keys.ts";
import { metricsRoutes } from "./routes/metrics.ts";
import { poolRoutes } from "./routes/pool.ts";
import { portRoutes } from "./routes/ports.ts";
import { previewRoutes } from "./routes/previews.ts";
import { providerRoutes } from "./routes/providers.ts";
import { quotaRoutes } from "./routes/quotas.ts";
import { rawFileRoutes } from "./routes/raw-files.ts";
import type { RouteApp } from "./routes/route-app.ts";
import { sandboxRoutes } from "./routes/sandboxes.ts";
import { snapshotRoutes } from "./routes/snapshots.ts";
import { systemRoutes } from "./routes/system.ts";
import { templateRoutes } from "./routes/templates.ts";
import { workerRoutes } from "./routes/workers.ts";
import type { ApiOptions } from "./services.ts";
import { endUnlessTaken } from "./stall-watch.ts";
import { socketBounds } from "./streams/socket-bounds.ts";
import { socketFailure } from "./streams/socket-failure.ts";
import { validatorCompiler } from "./validation.ts";

const prefix = "/api/v1";
const keepAliveMs = 75_000;
/** Of one answer: a dozen parts of the service want to know when a large one has ended. Node takes more than ten for a leak, and says so. */
const mostListeners = 30;
/** Of a body that somebody reads soon: fewer reads make uploads a quarter slower. */
const bodyAheadBytes = 262_144;
/**
 * Of a connection that speaks another protocol, for which nobody may ask for as long as a program does not read: one read, whatever
 * it brings. Nobody counts it, and there may be thousands.
 */
const upgradedAheadBytes = 16_384;
const headersDeadlineMs = 60_000;

/**
 * The HTTP interface over the services. Translates only: rules live in core. `close()` cuts streams at once, waits
 * briefly for calls whose outcome can be asked for afterwards and, within `server.shutdown_grace`, for the others.
 */
export async function buildApp(options: ApiOptions): Promise<RouteApp> {
  const { config, logger, previews } = options;
  const calls = new CallsUnderWay();
  const table = new RouteTable();
  const browsers = new BrowserGuard(config.server);
  const trail = new AuditTrail(options.audit);
  const accessLog = new AccessLog({ logger, clock: options.clock });
  const limit = new RequestLimit({ limits: options.rateLimits, keys: options.keys });
  const clients = new Clients(config.server);
  const turns = new ReadTurns();
  const lanes = new ConnectionLanes({ turns, headMs: headersDeadlineMs });
  const proxy = new PortProxy({ previews, responseTimeoutMs: config.preview.responseTimeoutMs, turns });
  const isKey: KeyCheck = (value, address) => {
    // Where there is none, none can be guessed: visitors' tokens are the program's affair.
    if (options.keys.isEmpty) return false;
    const name = options.keys.nameOf(value);
    options.rateLimits.checkOffered(address, { value, key: name, to: "program" });
    return name !== undefined;
  };
  const hosts = new PreviewHosts({
    ...options,
    proxy,
    calls,
    clients,
    domain: config.server.previewDomain,
    isKey,
    counts: previews.counts,
  });
  const upgrades = new EventEmitter();
  const upgradesUnderWay = new WeakMap<IncomingMessage, { socket: Duplex; head: Buffer }>();
  upgrades.on("upgrade", (request: IncomingMessage, socket: Duplex, head: Buffer) =>
    upgradesUnderWay.set(request, { socket, head }),
  );
  const upgradeOf = (request: IncomingMessage) => upgradesUnderWay.get(request);
  const app = fastify({
    // Hosts of previews come before everything: no hook, route or plugin of the API sees what is for them.
    serverFactory: (handler, { http }) =>
      serverFor(hosts, { handler, upgrades, turns, lanes, options: http ?? {} }),
    loggerInstance: logger,
    logController: new LogController({ disableRequestLogging: true }),
    // One logger for all: a child per request costs more than the requests it would be used in.
    childLoggerFactory: (parent) => parent,
    genReqId: requestIds(),
    requestIdHeader: false,
    bodyLimit: usualBodyBytes,
    trustProxy: config.server.trustedProxies.length > 0 ? config.server.trustedProxies : false,
    // What a server of our own factory is made with: Fastify applies its own options of these names to its own servers alone.
    http: {
      keepAliveTimeout: keepAliveMs,
      // Uploads may take as long as they take; only the head of a request has a deadline.
      requestTimeout: 0,
      highWaterMark: bodyAheadBytes,
      IncomingMessage: JoinedRequest,
      headersTimeout: headersDeadlineMs,
      maxHeaderSize,
      connectionsCheckingInterval: 10_000,
    },
    forceCloseConnections: true,
    // Its own limit on starting and closing is shorter than the grace.
    pluginTimeout: 0,
    // What comes during a stop is refused as everything is: see `guard`.
    return503OnClosing: false,
    // Probes are written in many places without the prefix.
    rewriteUrl: ({ url = "/" }) => (/^\/(live|ready|health)(\?|$)/.test(url) ? prefix + url : url),
    schemaController: { compilersFactory: serializersOnFirstUse },
    routerOptions: {
      maxParamLength: 256,
      querystringParser: readQuery,
    },
    frameworkErrors: (error, request, reply) => {
      answerUnread(error, request, reply as FastifyReply).catch((failure: unknown) => {
        // Nobody catches what is thrown from here: it would end the process.
        logger.error({ request_id: request.id, err: failure }, "request failed");
        reply.raw.destroy();
      });
    },
    clientErrorHandler: (error, socket) => {
      const { code } = error as NodeJS.ErrnoException;
      if (lanes.isEnding(socket)) return;
      if (!socket.writable || code === "ECONNRESET") socket.destroy();
      else if (code === "ERR_HTTP_REQUEST_TIMEOUT") lanes.endLate(socket, lateRequest);
      else lanes.end(socket, code === "HPE_HEADER_OVERFLOW" ? largeHead : unreadableRequest);
    },
  }).withTypeProvider<TypeBoxTypeProvider>() as unknown as RouteApp;
  const answerError = errorHandler(logger, {
    unanswered: (request, reply) => trail.unanswered(request, reply),
  });

  const answerUnread = async (error: Error, request: FastifyRequest, reply: FastifyReply) => {
    accessLog.watch(request, reply);
    const refused = limit.refusal(addressOf(request), reply);
    if (refused === undefined) await trail.refusedUnread(request, httpStatus[toDomainError(error).code]);
    endUnlessTaken(reply.raw);
    answerError(refused ?? error, request, reply);
  };

  app.setValidatorCompiler(validatorCompiler);
  const answerUnrouted = (request: FastifyRequest, reply: FastifyReply) => {
    const { error, allow } = table.refusal(request.method, pathOf(request));
    if (allow !== undefined) reply.header("allow", allow);
    answerError(error, request, reply);
  };
  app.setErrorHandler((error, request, reply) => {
    // A method that no route takes is refused as such, also when its body could not be read.
    if (request.is404 && !(error instanceof DomainError)) answerUnrouted(request, reply);
    else answerError(error, request, reply);
  });
  app.setNotFoundHandler(answerUnrouted);
  const workTurns = new FairTurns();
  app.decorate("turns", workTurns);
  new JsonBodies({ budget: options.bodies, inputs: options.inputs, turns: workTurns }).attach(app);
  decorateCallerSignal(app, calls);
  app.addHook("preClose", async () => {
    const endMs = performance.now() + config.server.shutdownGraceMs;
    await calls.drain(config.server.shutdownGraceMs);
    await options.execs.inputsGiven(endMs - performance.now());
  });
  accessLog.attach(app);
  await app.register(cors, crossOrigin(config, browsers));
  await app.register(websocket, {
    errorHandler: socketFailure(logger),
    options: {
      ...socketBounds,
      perMessageDeflate: false,
      // A message a turn: others come in between, however small its messages are and however many one read brings.
      allowSynchronousEvents: false,
      handleProtocols: chooseProtocol,
      // Those that are not for previews.
      server: upgrades as Server,
    },
  });
  app.decorateReply("isProgram", false);
  app.addHook("onRequest", (request, reply, done) => {
    reply.raw.setMaxListeners(mostListeners);
    // Nothing is read of a connection whose handshake was refused.
    if (request.ws) reply.raw.shouldKeepAlive = false;
    done();
  });
  traceRequests(app, options);
  nameRequests(app);
  trail.attach(app);
  // After the plugins: a refused upgrade is closed by the websocket plugin, a preflight answered by the CORS plugin.
  guard(app, { ...options, browsers, calls, limit });
  refuseHandshakes(app);
  app.addHook("onRequest", (request, _reply, done) => {
    if (request.routeOptions.config.readsBody !== true) dropUnreadBody(request.raw);
    done();
  });
  app.addHook("onSend", (request, reply, payload, done) => {
    // Streams that somebody with a key asked for go on as slowly as they are read.
    if (request.routeOptions.config.open === true || reply.statusCode >= 400 || !isStream(payload))
      endUnlessTaken(reply.raw);
    done(null, payload);
  });
  app.addHook("onResponse", (_request, reply, done) => {
    // What a program answers, or fails to, is its owner's to look at and not the operator's.
    if (!reply.isProgram && !programFaults.has(reply.refusal?.code ?? ""))
      options.responses.count(reply.statusCode);
    done();
  });
  app.addHook("onResponse", (request, _reply, done) => {
    endUnlessComplete(request.raw);
    done();
  });
  limitConnections(app, { ...options, maxConnections: config.server.maxConnections });
  table.watch(app);

  await app.register(
    async (scope: RouteApp) => {
      sandboxRoutes(scope, { ...options, server: config.server, pooled: config.pool.enabled });
      execRoutes(scope, options);
      execSocketRoute(scope, { ...options, calls });
      fileRoutes(scope, options);
      eventRoutes(scope, options);
      systemRoutes(scope, options);
      metricsRoutes(scope, options);
      providerRoutes(scope, options);
      quotaRoutes(scope, options);
      templateRoutes(scope, { ...options, server: config.server, pooled: config.pool.enabled });
      poolRoutes(scope, options);
      snapshotRoutes(scope, options);
      auditRoutes(scope, options);
      keyRoutes(scope, options);
      workerRoutes(scope, options);
      previewRoutes(scope, { ...options, clients });
      const ofPorts = { ...options, proxy, clients, calls, isKey, upgradeOf };
      await scope.register(async (ports: RouteApp) => portRoutes(ports, ofPorts));
      await scope.register(async (raw: RouteApp) => rawFileRoutes(raw, options));
      let document: Buffer | undefined;
      scope.get("/openapi.json", { config: { open: true } }, (_request, reply) => {
        // One for all: a text would be copied for each who asks, and does not take it.
        document ??= Buffer.from(JSON.stringify(openapiDocument(table.routes, { version: options.version })));
        reply.type("application/json; charset=utf-8").send(document);
      });
    },
    { prefix },
  );
  referencePage(app);
  app.addHook("onClose", async () => proxy.close());
  app.decorate("callsUnderWay", calls);
  app.decorate("routeTable", table);
  await app.ready();
  return app;
}

function isStream(payload: unknown): boolean {
  return typeof payload === "object" && payload !== null && !Buffer.isBuffer(payload);
}

const programFaults: ReadonlySet<string> = new Set<ErrorCode>(["bad_gateway", "gateway_timeout"]);

declare module "fastify" {
  interface FastifyReply {
    /** Whether the answer is that of a program in a sandbox. */
    isProgram: boolean;
  }
  interface FastifyContextConfig {
    /** Whether it takes a WebSocket's handshake; said of those that have a `wsHandler`. */
    upgrades?: boolean;
  }
  interface FastifyInstance {
    callsUnderWay: CallsUnderWay;
    /** Of everything that bodies, answers and streams cost. */
    turns: FairTurns;
    routeTable: RouteTable;
  }
}

/** The server in front of both: it tells hosts of previews from those of the API. */
function serverFor(
  hosts: PreviewHosts,
  {
    handler,
    upgrades,
    turns,
    lanes,
    options,
  }: {
    handler: Parameters<NonNullable<FastifyServerFactory>>[0];
    upgrades: EventEmitter;
    turns: ReadTurns;
    lanes: ConnectionLanes;
    options: ServerOptions;
  },
): Server {
  const expectsMore = new WeakSet<IncomingMessage>();
  const inTurn = lanes.inTurn((request, response) => {
    if (lacksOneHost(request)) refuseHead(response, 400, withoutOneHost);
    else if (hasCodedBody(request)) refuseHead(response, 501, codedBody);
    else if (expectsMore.has(request)) refuseHead(response, 417);
    else if (hosts.takes(request)) hosts.answer(request, response).catch(() => response.destroy());
    else handler(request, response);
  });
  const server = createServer(
    // Clients that offer another protocol in passing are answered in this one. So is a handshake with a body: of that Node makes a
    // stream of its own, which reads the connection on while the parser may not, and ends the process. And so is one behind a request
    // that is not answered yet: what it writes would be taken for what was asked before.
    {
      ...options,
      requireHostHeader: false,
      shouldUpgradeCallback: (request) =>
        /^websocket$/i.test(request.headers.upgrade ?? "") &&
        !lacksOneHost(request) &&
        !bodyIsUnderWay(request) &&
        !isAnswering(request.socket),
    },
    (request, response) => {
      if (losesWhatFollows(request, turns.parsing(request.socket))) response.shouldKeepAlive = false;
      inTurn(request, response);
    },
  );
  server.on("connection", (socket: Socket) => {
    // Of a connection that was reset before it was accepted, requests can be read all the same, and there is nobody to answer. Node
    // remembers the address from here on: it cannot be had any more once the connection is reset.
    if (socket.remoteAddress === undefined) {
      socket.destroy();
      return;
    }
    // A listener has Node read the connection as a stream, and no longer parse whatever there is by itself.
    const unused = () => undefined;
    socket.on("data", unused).off("data", unused);
    const { parser } = socket as { parser?: unknown };
    // Once it has none, others may have what the parser left.
    turns.pace(socket, {
      copies: () => parser !== undefined && (socket as { parser?: unknown }).parser === parser,
    });
  });
  server.on("upgrade", (request: IncomingMessage, socket: Duplex, first: Buffer) => {
    lanes.leave(request.socket);
    setReadAhead(request.socket, upgradedAheadBytes);
    // Node tells an answer on such a connection no more that there is room in it again.
    socket.on("drain", () => (socket as Answering)._httpMessage?.emit("drain"));
    // Where the request has a body of its own, the parser goes on.
    const head = socket === request.socket ? Buffer.concat([first, turns.release(socket)]) : first;
    if (hosts.takes(request)) hosts.upgrade(request, socket, head).catch(() => socket.destroy());
    else {
      upgrades.emit("upgrade", request, socket, head);
      // Some answers have no route: no hook ends the connection after those.
      (socket as Answering)._httpMessage?.once("finish", () => endConnection(socket));
    }
  });
  server.maxHeadersCount = mostHeaders;
  // Node's own answer would come beside the lanes, and leave the connection to a body that nobody reads and that need not end.
  server.on("checkExpectation", (request: IncomingMessage, response: ServerResponse) => {
    expectsMore.add(request);
    inTurn(request, response);
  });
  return server;
}

/** A connection with Node's own mark of the answer that is being written to it, which it refuses a second one by. */
type Answering = Duplex & { _httpMessage?: ServerResponse | null };

function isAnswering(socket: Answering): boolean {
  return socket._httpMessage !== undefined && socket._httpMessage !== null;
}

/**
 * Whether what was sent behind a request in the same piece may be lost: Node's parser stops at a head, or behind a body, that asks
 * for another protocol, and drops what the piece has behind it, also where the request is answered in this one.
 */
function losesWhatFollows({ headers }: IncomingMessage, piece: Buffer | undefined): boolean {
  if (headers.upgrade === undefined) return false;
  const end = piece?.indexOf("\r\n\r\n") ?? -1;
  return end === -1 || end + 4 !== piece?.length;
}

const unreadableRequest = lastAnswer("400 Bad Request", {
  code: "bad_request",
  message: "the request cannot be read as HTTP",
});
const largeHead = lastAnswer("400 Bad Request", {
  code: "bad_request",
  message: `the head of the request has more than ${maxHeaderSize / 1_024} KiB or ${mostHeaders} headers`,
});
const withoutOneHost = JSON.stringify({
  code: "bad_request",
  message: "the request has no Host, or several",
});
const codedBody = JSON.stringify({
  code: "bad_request",
  message: "of the codings of Transfer-Encoding only chunked is taken; send the body as it is, or chunked",
});
const lateRequest = lastAnswer("408 Request Timeout", {
  code: "timeout",
  message: `the head of the request did not come within ${headersDeadlineMs / 1_000} s`,
});

/** An answer to what is no request yet, after which the connection ends. */
function lastAnswer(status: string, error: { code: ErrorCode; message: string }): string {
  const body = JSON.stringify(error);
  return `HTTP/1.1 ${status}\r\nContent-Type: application/json; charset=utf-8\r\nContent-Length: ${body.length}\r\nConnection: close\r\n\r\n${body}`;
}

/**
 * Refuses to speak WebSocket where there is nobody to speak to: the plugin would agree, tell the whole address in the log, with
 * what its query holds, and leave the connection to its client for a while.
 */
function refuseHandshakes(app: RouteApp): void {
  app.addHook("onRoute", (route) => {
    if (route.wsHandler !== undefined) route.config = { ...route.config, upgrades: true };
  });
  app.addHook("onRequest", (request, _reply, done) => {
    if (request.ws !== true || request.is404 || request.routeOptions.config.upgrades === true) return done();
    done(
      new BadRequest(`${request.method} ${pathOf(request)} is no WebSocket; ask for it without an upgrade`),
    );
  });
}

/** Request ids, the browser guard and keys, before anything else is done for a request. */
function guard(
  app: RouteApp,
  options: ApiOptions & { browsers: BrowserGuard; calls: CallsUnderWay; limit: RequestLimit },
): void {
  const { limit, keys, tickets, calls } = options;
  const { auth } = options.config;
  keys.onChange(() => {
    if (auth.enabled) calls.revoke((principal, scope) => keys.holds(principal, scope));
  });
  app.addHook("onRoute", (route) => {
    if (route.config?.open === true) return;
    const { operationId } = route.schema ?? {};
    route.config = { ...route.config, access: accessOf({ url: route.url, operationId }) };
  });
  app.decorateRequest("principal");
  app.decorateRequest("tenant");
  const letIn = (request: FastifyRequest) =>
    authenticateByTicket(request, { keys, tickets }) ?? authenticate(keys, request.headers);
  app.addHook("onRequest", (request: FastifyRequest, reply: FastifyReply, done) => {
    reply.header("x-request-id", request.id);
    const { open, probe } = request.routeOptions.config;
    try {
      request.principal = anybody;
      if (auth.enabled) {
        if (open !== true) request.principal = limit.letIn(request, reply, () => letIn(request));
      } else {
        request.principal = localUser;
        if (probe !== true)
          options.browsers.check({ headers: request.headers, localAddress: request.socket.localAddress });
      }
      if (probe !== true) limit.count(request, reply);
      done();
    } catch (error) {
      done(error as Error);
    }
  });
  const mayDoThat = async (request: FastifyRequest) => {
    // The CORS plugin takes every OPTIONS, and refuses what is no preflight as a method that no route takes.
    const ofPlugin = request.method === "OPTIONS" && request.routeOptions.url === "*";
    if (!request.is404 && !ofPlugin)
      await checkAccess(request, (id) => options.sandboxes.ownerOf(id), {
        pooled: options.config.pool.enabled,
      });
    // Who is refused, and what they may do, is known by then, to the audit history too.
    if (calls.draining) throw toDomainError(new ShuttingDown());
  };
  app.addHook("onRequest", mayDoThat);
  // A body may take as long as its sender likes: what counts is the key when it has come.
  app.addHook("preValidation", (request, _reply, done) => {
    if (
      !auth.enabled ||
      request.routeOptions.config.open === true ||
      keys.holds(request.principal, request.routeOptions.config.access?.scope)
    )
      return done();
    try {
      request.principal = authenticate(keys, request.headers);
    } catch (error) {
      return done(error as Error);
    }
    mayDoThat(request).then(() => done(), done);
  });
}

/** What is beyond the limit is closed at once: descriptors are for sandboxes too. */
function limitConnections(
  app: RouteApp,
  options: { maxConnections: number; logger: Logger; clock: Clock },
): void {
  const { maxConnections, logger, clock } = options;
  if (maxConnections === 0) return;
  app.server.maxConnections = maxConnections;
  let suppressed = 0;
  let toldMs = Number.NEGATIVE_INFINITY;
  app.server.on("drop", () => {
    if (clock.monotonicMs() - toldMs < 60_000) {
      suppressed++;
      return;
    }
    toldMs = clock.monotonicMs();
    logger.warn({ suppressed }, `a connection was refused: server.max_connections is ${maxConnections}`);
    suppressed = 0;
  });
}

/**
 * Whatever is logged while a request is dealt with names it. Entered anew once the body was read, which goes on from
 * the socket's events.
 */
function nameRequests(app: RouteApp): void {
  app.addHook("onRequest", (request, _reply, done) => withinRequest(request, done));
  app.addHook("preValidation", (request, _reply, done) => withinRequest(request, done));
}

/** `*` means every origin only where keys guard the service; without them the guard says who may call, and `*` names nobody. */
function crossOrigin(config: ApiOptions["config"], browsers: BrowserGuard): FastifyCorsOptions {
  const origins = config.server.corsAllowedOrigins;
  const answers = (origin: NonNullable<FastifyCorsOptions["origin"]>): FastifyCorsOptions => ({
    origin,
    // PATCH is for ports by path alone.
    methods: ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"],
    exposedHeaders: [...Object.keys(answerHeaders), ...portHeaders],
    strictPreflight: false,
    maxAge: 600,
  });
  if (config.auth.enabled) {
    if (origins.includes("*")) return answers("*");
    return answers(origins.length === 0 ? false : [...origins]);
  }
  const delegator: FastifyCorsOptionsDelegateCallback = ({ headers: { origin, host } }, answer) => {
    const known = origin !== undefined && origins.length > 0 && browsers.knowsOrigin(origin, host);
    answer(null, answers(known ? origin : false));
  };
  return { delegator };
}
