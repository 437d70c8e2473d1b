import { createHash, randomBytes } from "node:crypto";
import { readFile } from "node:fs/promises";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";
import { gzip } from "node:zlib";
import type { FastifyReply, FastifyRequest } from "fastify";
import type { RouteApp } from "./routes/route-app.ts";

const zip = promisify(gzip);

/** What the page loads beside the description itself; all of it from this service. */
const assets: Readonly<Record<string, { type: string; read: () => Promise<Buffer> }>> = {
  "swagger-ui.js": { type: "text/javascript; charset=utf-8", read: () => packaged("swagger-ui-bundle.js") },
  "swagger-ui.css": { type: "text/css; charset=utf-8", read: () => packaged("swagger-ui.css") },
  "start.js": { type: "text/javascript; charset=utf-8", read: async () => Buffer.from(startScript) },
};

/** Shows the description of this service and no other; a key that is entered is kept by the open page alone. */
const startScript = `SwaggerUIBundle({
  url: "/api/v1/openapi.json",
  dom_id: "#reference",
  presets: [SwaggerUIBundle.presets.apis],
  layout: "BaseLayout",
  validatorUrl: null,
  queryConfigEnabled: false,
  persistAuthorization: false,
  deepLinking: true,
  docExpansion: "list",
  defaultModelsExpandDepth: 0,
  displayRequestDuration: true,
  filter: true,
});
`;

/**
 * Nothing but what this page names runs: not even what the API itself answers could be a script here, as it could with
 * 'self'. What a call answers is shown by a page that holds the reader's key.
 */
function securityPolicy(nonce: string): string {
  return [
    "default-src 'none'",
    `script-src 'nonce-${nonce}'`,
    "style-src 'self'",
    "img-src 'self' data: blob:",
    "connect-src 'self'",
    "base-uri 'none'",
    "form-action 'none'",
    "frame-ancestors 'none'",
  ].join("; ");
}

const page = (nonce: string) => `<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Alcove API</title>
<link rel="icon" href="data:,">
<link rel="stylesheet" href="/docs/swagger-ui.css">
</head>
<body>
<noscript>This page needs JavaScript; <a href="/api/v1/openapi.json">openapi.json</a> does not.</noscript>
<div id="reference"></div>
<script nonce="${nonce}" src="/docs/swagger-ui.js"></script>
<script nonce="${nonce}" src="/docs/start.js"></script>
</body>
</html>
`;

/** `/docs`: the description of the API for people, who can try each call with a key of theirs. docs/api/README.md. */
export function referencePage(app: RouteApp): void {
  const config = { open: true } as const;
  app.get("/docs", { config }, (_request, reply) => {
    const nonce = randomBytes(16).toString("base64");
    harden(reply)
      .header("content-security-policy", securityPolicy(nonce))
      .header("cache-control", "no-store")
      .type("text/html; charset=utf-8")
      .send(page(nonce));
  });
  for (const [name, { type, read }] of Object.entries(assets)) {
    const contents = once(async () => packed(await read()));
    app.get(`/docs/${name}`, { config }, async (request, reply) => {
      const { etag, zipped, plain } = await contents();
      // Asked for anew each time, so that a newer service is not shown by an older script.
      harden(reply)
        .header("etag", etag)
        .header("cache-control", "no-cache")
        .header("vary", "accept-encoding")
        .header("content-security-policy", "default-src 'none'");
      if (knows(request, etag)) return reply.code(304).send();
      reply.type(type);
      return takesGzip(request) ? reply.header("content-encoding", "gzip").send(zipped) : reply.send(plain);
    });
  }
}

/** Against being taken for something else, framed, or told where the reader goes next. */
function harden(reply: FastifyReply): FastifyReply {
  return reply
    .header("x-content-type-options", "nosniff")
    .header("x-frame-options", "DENY")
    .header("referrer-policy", "no-referrer")
    .header("cross-origin-opener-policy", "same-origin")
    .header("cross-origin-resource-policy", "same-origin");
}

function packaged(file: string): Promise<Buffer> {
  return readFile(fileURLToPath(import.meta.resolve(`swagger-ui-dist/${file}`)));
}

interface Packed {
  etag: string;
  zipped: Buffer;
  plain: Buffer;
}

/** Kept both ways, from the first time it is asked for on, two megabytes in all: no answer has bytes of its own. */
async function packed(contents: Buffer): Promise<Packed> {
  const zipped = await zip(contents, { level: 9 });
  const etag = `"${createHash("sha256").update(contents).digest("base64url").slice(0, 22)}"`;
  return { etag, zipped, plain: contents };
}

/** @returns one that reads again only after it failed. */
function once<T>(read: () => Promise<T>): () => Promise<T> {
  let reading: Promise<T> | undefined;
  return () => {
    reading ??= read().catch((error: unknown) => {
      reading = undefined;
      throw error;
    });
    return reading;
  };
}

function knows(request: FastifyRequest, etag: string): boolean {
  const known = request.headers["if-none-match"] ?? "";
  return known
    .split(",")
    .map((one) => one.trim().replace(/^W\//, ""))
    .some((one) => one === etag || one === "*");
}

function takesGzip(request: FastifyRequest): boolean {
  const accepted = String(request.headers["accept-encoding"] ?? "");
  return accepted.split(",").some((one) => /^\s*gzip\s*(;\s*q=(?!0(\.0*)?\s*$).*)?$/i.test(one));
}
