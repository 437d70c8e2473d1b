import { type IncomingMessage, ServerResponse } from "node:http";
import type { Duplex } from "node:stream";
import { linkScope } from "../../core/previews/link-issuers.ts";
import type { PreviewCounts } from "../../core/previews/preview-counts.ts";
import type { PreviewTarget, VerifiedPass } from "../../core/previews/preview-links.ts";
import type { Previews } from "../../core/previews/previews.ts";
import { CallerGone, CallerRevoked, DeadlineExceeded, ShuttingDown } from "../../platform/deadline.ts";
import type { Logger } from "../../platform/logger.ts";
import type { Clock } from "../../ports/clock.ts";
import { BadRequest, DomainError, NotFound } from "../../ports/errors.ts";
import { endConnection } from "../end-connection.ts";
import { httpStatus, toDomainError } from "../error-map.ts";
import { hostname } from "../host-name.ts";
import { endUnlessComplete } from "../refused-body.ts";
import type { CallsUnderWay, CallUnderWay } from "../request-context.ts";
import { endUnlessTaken } from "../stall-watch.ts";
import { headersForProgram, headersFromProgram, type KeyCheck } from "./carried-headers.ts";
import type { Client, Clients } from "./clients.ts";
import { endOnEarlyLeave } from "./early-leave.ts";
import { atEnd } from "./link-end.ts";
import { sameHost, splitLink } from "./link-query.ts";
import { loopGuard } from "./loop-guard.ts";
import { passesOf, setCookie } from "./own-cookies.ts";
import { answerFailure } from "./pages.ts";
import type { Passage, PortProxy } from "./port-proxy.ts";
import { readPreviewHost } from "./preview-host.ts";
import { VisitLog, type VisitRecord } from "./visit-log.ts";

/** Requests for one preview, once its host was read. */
interface Visit {
  readonly target: PreviewTarget;
  readonly host: string;
  readonly client: Client;
  /** Without the link's pass. */
  readonly path: string;
}

/** What lets a visitor in, null: nothing is needed; or what is to be traded first. */
type Entry = { kind: "in"; pass: VerifiedPass | null } | { kind: "trade"; pass: VerifiedPass };

/**
 * The hosts of previews, taken before anything of the API sees a request: nothing of the API is reachable on them, and
 * nothing of them is the API's origin. docs/api/previews.md.
 */
export class PreviewHosts {
  readonly #previews: Previews;
  readonly #proxy: PortProxy;
  readonly #clients: Clients;
  readonly #calls: CallsUnderWay;
  readonly #server: { publicUrl: string; previewDomain: string };
  readonly #isKey: KeyCheck;
  readonly #logger: Logger;
  readonly #clock: Pick<Clock, "now">;
  readonly #log: VisitLog;
  readonly #counts: PreviewCounts;

  constructor(options: {
    previews: Previews;
    proxy: PortProxy;
    clients: Clients;
    calls: CallsUnderWay;
    /** `server.preview_domain`. */
    domain: string;
    config: { server: { publicUrl: string } };
    isKey: KeyCheck;
    logger: Logger;
    clock: Pick<Clock, "now" | "monotonicMs">;
    counts: PreviewCounts;
  }) {
    this.#previews = options.previews;
    this.#proxy = options.proxy;
    this.#clients = options.clients;
    this.#calls = options.calls;
    this.#server = { publicUrl: options.config.server.publicUrl, previewDomain: options.domain };
    this.#isKey = options.isKey;
    this.#logger = options.logger;
    this.#clock = options.clock;
    this.#log = new VisitLog(options);
    this.#counts = options.counts;
  }

  /** Whether a request is for a preview, or for something that looks like one. */
  takes(request: IncomingMessage): boolean {
    return readPreviewHost(request.headers.host, this.#server).kind !== "other";
  }

  /** Answers a request that `takes` is true of. */
  async answer(request: IncomingMessage, response: ServerResponse): Promise<void> {
    // A client that goes away in the middle is no failure of the service.
    request.on("error", () => undefined);
    response.on("error", () => undefined);
    response.once("close", () => endUnlessComplete(request));
    const call = this.#calls.begin(null);
    call.setPatience("brief");
    using visited = this.#log.begin(request);
    response.once("close", () => {
      if (!response.writableFinished) call.abort(new CallerGone());
    });
    try {
      const visit = this.#read(request, visited);
      const entry = this.#enter(request, visit);
      if (entry.kind === "trade") {
        this.#trade(response, visit, entry.pass);
        this.#counts.answered += 1;
        return;
      }
      using _end = this.#endWith(call, entry.pass);
      const port = await this.#previews.findPreview(visit.target, call);
      const outcome = await this.#proxy.forward(
        this.#passage(request, visit, { port, call }),
        () => response,
      );
      this.#counts.count(outcome);
      visited.cut = outcome === "cut";
    } catch (error) {
      this.#refuse(request, { error, response: () => response, visited });
    } finally {
      visited.status = response.statusCode;
      call.end();
    }
  }

  /** As `answer`, for a WebSocket. */
  async upgrade(request: IncomingMessage, socket: Duplex, head: Buffer): Promise<void> {
    socket.on("error", () => socket.destroy());
    const call = this.#calls.begin(null);
    call.setPatience("brief");
    const onClose = () => call.abort(new CallerGone());
    socket.once("close", onClose);
    using early = endOnEarlyLeave(socket);
    using visited = this.#log.begin(request);
    visited.status = 101;
    const response = () => plainResponse(request, socket);
    try {
      const visit = this.#read(request, visited);
      if (request.method !== "GET") throw new BadRequest("a WebSocket is asked for with GET");
      const entry = this.#enter(request, visit);
      using _end = this.#endWith(call, entry.pass);
      const port = await this.#previews.findPreview(visit.target, call);
      this.#counts.sockets += 1;
      call.setPatience("none");
      const passage = this.#passage(request, visit, { port, call });
      const outcome = await this.#proxy.upgrade(passage, {
        socket,
        head,
        response,
        onSwitch: () => {
          early[Symbol.dispose]();
          socket.off("close", onClose);
        },
      });
      this.#counts.count(outcome);
      visited.cut = outcome === "cut";
    } catch (error) {
      visited.status = this.#refuse(request, { error, response, visited });
    } finally {
      call.end();
    }
  }

  #read(request: IncomingMessage, visited: VisitRecord): Visit {
    if (this.#calls.draining) throw new ShuttingDown();
    const { url = "", method = "", rawHeaders } = request;
    const { host = "" } = request.headers;
    const hosts = rawHeaders.filter((name, index) => index % 2 === 0 && name.toLowerCase() === "host");
    // Whoever reads another of them, or of the target, than is read here would mean another sandbox.
    if (hosts.length !== 1) throw new BadRequest("the request has more than one Host");
    if (!url.startsWith("/")) throw new BadRequest("the request's target must be a path");
    if (method === "TRACE" || method === "CONNECT") throw new BadRequest(`previews do not take ${method}`);
    loopGuard.check(request);
    const read = readPreviewHost(host, this.#server);
    if (read.kind !== "preview")
      throw new NotFound(
        `${JSON.stringify(host.slice(0, 100))} is no preview: its name would be <port>-<sandbox id>, as GET /api/v1/sandboxes/{id}/preview/{port} tells it; the API is asked by another name`,
      );
    visited.target = read.target;
    const client = this.#clients.of(request, hostname(host));
    return { target: read.target, host, client, path: splitLink(url).path };
  }

  /** @throws DomainError `unauthorized` for who has neither a link nor what it was traded for. */
  #enter(request: IncomingMessage, { target, host }: Visit): Entry {
    const { access, links } = this.#previews;
    if (access === "public") return { kind: "in", pass: null };
    const { pass } = splitLink(request.url ?? "");
    // Before the cookie, which may end sooner than the link that somebody was sent.
    const link = pass === undefined ? undefined : links.verify("link", target, pass);
    if (link !== undefined) return this.#tradeOrIn(request, link);
    for (const pass of isOfThisHost(request, host) ? passesOf(request.headers.cookie) : []) {
      const cookie = links.verify("cookie", target, pass);
      if (cookie !== undefined) return this.#tradeOrIn(request, cookie);
    }
    throw new DomainError(
      "unauthorized",
      `${pass === undefined ? "a link is needed" : "this link is not accepted, or has expired"}; "alcove open ${target.sandboxId} ${target.port}" makes one, as does GET /api/v1/sandboxes/${target.sandboxId}/preview/${target.port}`,
    );
  }

  /** A browser that opens a link gets a cookie in its place, so that no page and no Referer has the link. */
  #tradeOrIn(request: IncomingMessage, verified: VerifiedPass): Entry {
    const { method = "", headers } = request;
    const opens = /^(GET|HEAD)$/.test(method) && headers.upgrade === undefined;
    const { pass } = splitLink(request.url ?? "");
    const browses = headers["sec-fetch-mode"] === "navigate" || /\btext\/html\b/.test(headers.accept ?? "");
    return { kind: opens && browses && pass !== undefined ? "trade" : "in", pass: verified };
  }

  /** What was opened with a link ends with it, and with the key that made it. */
  #endWith(call: CallUnderWay, pass: VerifiedPass | null): Disposable {
    if (pass?.issuer) {
      call.setCaller(pass.issuer, linkScope);
      call.endWithKey();
    }
    return atEnd(pass?.until, this.#clock, () => call.abort(new LinkOver()));
  }

  #trade(response: ServerResponse, { target, client, path }: Visit, pass: VerifiedPass): void {
    const { links } = this.#previews;
    response.writeHead(302, {
      Location: sameHost(path),
      "Set-Cookie": setCookie({
        proto: client.proto,
        pass: links.sign("cookie", target, pass),
        expiresAt: pass.until,
        now: this.#clock.now(),
      }),
      "Cache-Control": "no-store",
      "Referrer-Policy": "no-referrer",
      "Content-Length": "0",
    });
    endUnlessTaken(response);
    response.end();
  }

  #passage(
    request: IncomingMessage,
    { host, client, path }: Visit,
    { port, call }: { port: Passage["port"]; call: CallUnderWay },
  ): Passage {
    const headers = headersForProgram(request, {
      host,
      client,
      isKey: this.#isKey,
      cookies: true,
      via: loopGuard.name,
    });
    const { signal } = call;
    return { request, port, path, headers, signal, answerHeaders: headersFromProgram };
  }

  /** @returns the status that tells it. */
  #refuse(
    request: IncomingMessage,
    { error, response, visited }: { error: unknown; response: () => ServerResponse; visited: VisitRecord },
  ): number {
    const revoked = error instanceof CallerRevoked;
    if (error instanceof CallerGone && !revoked) {
      this.#counts.count("cut");
      visited.cut = true;
      return visited.status;
    }
    const domain = error instanceof LinkOver || revoked ? linkOver : toDomainError(error);
    visited.refusal = domain;
    visited.address = this.#clients.of(request, "").forwardedFor;
    if (domain.code === "internal")
      this.#logger.error({ event: "preview", host: request.headers.host, err: error }, "preview failed");
    this.#counts.refused += 1;
    const answer = response();
    if (answer.headersSent || answer.destroyed) answer.destroy();
    else {
      endUnlessTaken(answer);
      answerFailure(request, answer, domain);
    }
    return httpStatus[domain.code];
  }
}

/**
 * Whether a visitor asks for it, and not a page of another preview in the visitor's browser: to a browser all previews may be
 * one site, whose pages have each other's cookies sent. To follow a link from anywhere is a visit.
 */
function isOfThisHost({ method = "", headers }: IncomingMessage, host: string): boolean {
  const { origin, "sec-fetch-site": site, "sec-fetch-mode": mode } = headers;
  if (
    origin !== undefined &&
    (!URL.canParse(origin) || new URL(origin).hostname !== hostname(host).toLowerCase())
  )
    return false;
  return (
    site === undefined ||
    site === "same-origin" ||
    site === "none" ||
    (method === "GET" && mode === "navigate")
  );
}

const linkOver = new DomainError("unauthorized", "the link to this preview has ended; ask for another");

/** What was opened with a link ends with it. */
class LinkOver extends DeadlineExceeded {
  constructor() {
    super(0);
    this.message = "the link has ended";
  }
}

/** A plain answer on a connection that was to be upgraded, which it ends. */
function plainResponse(request: IncomingMessage, socket: Duplex): ServerResponse {
  const response = new ServerResponse(request);
  response.shouldKeepAlive = false;
  response.assignSocket(socket as Parameters<ServerResponse["assignSocket"]>[0]);
  response.once("finish", () => {
    response.detachSocket(socket as Parameters<ServerResponse["detachSocket"]>[0]);
    endConnection(socket);
  });
  endUnlessTaken(response);
  return response;
}
