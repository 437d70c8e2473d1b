import { ErrorBody, ExecStreamChunk, WsClientMessage, WsServerMessage } from "@alcove/wire";
import type { FastifySchema, RouteOptions } from "fastify";
import { ownOperation } from "./access.ts";
import { answerExamples } from "./answer-examples.ts";
import { type AnswerHeader, answerHeaders } from "./answer-headers.ts";
import { limitText, usualBodyBytes } from "./body-limits.ts";
import { operationNotes } from "./operation-notes.ts";
import { plainSchema } from "./validation.ts";

type Json = Record<string, unknown>;

const tagDescriptions: Readonly<Record<string, string>> = {
  sandboxes: "Spawn, look at, extend and destroy sandboxes.",
  exec: "Run commands and find them again.",
  files: "Files inside sandboxes.",
  events: "What happens, as it happens.",
  providers: "What runs sandboxes.",
  quotas: "What owners may have.",
  templates: "Named ways to spawn.",
  pool: "Users that share VMs.",
  workers: "Who runs sandboxes.",
  admin: "For those who administer; every call is in the audit history.",
  system: "Health of the service.",
};

/** The OpenAPI 3.1 description of the routes, from the schemas that validate and serialise them. docs/api/README.md. */
export function openapiDocument(routes: readonly RouteOptions[], options: { version: string }): Json {
  const components: Json = {};
  const refs = new SchemaRefs(components);
  for (const schema of [ErrorBody, ExecStreamChunk, WsClientMessage, WsServerMessage]) refs.of(schema);
  const paths: Record<string, Json> = {};
  for (const route of routes) {
    if (route.schema?.operationId === undefined || route.schema.hide === true) continue;
    const path = route.url.replaceAll(/:([A-Za-z]+)/g, "{$1}");
    for (const method of [route.method].flat()) {
      if (method === "HEAD") continue;
      paths[path] ??= {};
      paths[path][method.toLowerCase()] = operation(route, route.schema, refs);
    }
  }
  return {
    openapi: "3.1.0",
    info: {
      title: "Alcove",
      version: options.version,
      description: "Self-hosted, disposable, isolated computers for programs.",
      license: { name: "Apache-2.0", identifier: "Apache-2.0" },
    },
    servers: [{ url: "/" }],
    security: [{ apiKey: [] }, { bearer: [] }],
    tags: Object.entries(tagDescriptions).map(([name, description]) => ({ name, description })),
    paths: Object.fromEntries(Object.entries(paths).sort(([a], [b]) => (a < b ? -1 : 1))),
    components: {
      parameters: { UserId: userIdParameter },
      headers: answerHeaders,
      responses: usualResponses(),
      schemas: Object.fromEntries(Object.entries(components).sort(([a], [b]) => (a < b ? -1 : 1))),
      securitySchemes: {
        apiKey: { type: "apiKey", in: "header", name: "X-API-Key" },
        bearer: { type: "http", scheme: "bearer" },
      },
    },
  };
}

/**
 * For every operation that takes a key; those that spawn have one of their own, which says what an owner may be. Here that
 * is not looked at where nothing depends on it.
 */
const userIdParameter = {
  name: "x-user-id",
  in: "header",
  required: false,
  description:
    "On whose behalf this is asked: whose rate limit counts, and in pool mode whose sandboxes there are at all. A key that is bound to an owner takes no other.",
  schema: { type: "string", examples: ["acme"] },
};

function operation(route: RouteOptions, schema: FastifySchema, refs: SchemaRefs): Json {
  const parameters = [
    ...parametersOf("path", schema.params, refs),
    ...parametersOf("query", schema.querystring, refs),
    ...parametersOf("header", schema.headers, refs),
  ];
  if (route.config?.open !== true && !parameters.some(({ name }) => name === userIdParameter.name))
    parameters.push({ $ref: "#/components/parameters/UserId" });
  const note = operationNotes[ownOperation(schema.operationId ?? "")];
  const example = note?.example === undefined ? {} : { example: note.example };
  const content =
    schema.openapi?.requestContent ??
    (schema.body === undefined
      ? undefined
      : { "application/json": { schema: refs.of(schema.body), ...example } });
  return {
    operationId: schema.operationId,
    summary: schema.summary,
    ...(note === undefined ? {} : { description: note.description }),
    tags: schema.tags ?? [],
    ...(parameters.length === 0 ? {} : { parameters }),
    ...(content === undefined ? {} : { requestBody: { required: !optionalBody(schema), content } }),
    ...(route.config?.open === true ? { security: [] } : {}),
    responses: responsesOf(route, schema, refs),
  };
}

/** A body whose fields are all optional may be left out. */
function optionalBody(schema: FastifySchema): boolean {
  // Raw bytes: none at all is an empty file.
  if (schema.openapi?.requestContent !== undefined) return true;
  const body = schema.body as { required?: unknown[] } | undefined;
  return body !== undefined && (body.required ?? []).length === 0;
}

function parametersOf(place: "path" | "query" | "header", schema: unknown, refs: SchemaRefs): Json[] {
  if (schema === undefined) return [];
  const { properties = {}, required = [] } = schema as { properties?: Json; required?: string[] };
  return Object.entries(properties).map(([name, value]) => ({
    name,
    in: place,
    required: place === "path" || required.includes(name),
    schema: refs.of(value),
  }));
}

/** Refusals that are the same wherever they come, with their names among the components. */
const usualRefusals: Readonly<Record<number, { name: string; description: string }>> = {
  400: { name: "BadRequest", description: "The request makes no sense; the message names the field." },
  401: { name: "Unauthorized", description: "A key is required, or the one given is not known." },
  403: {
    name: "Forbidden",
    description: "The key may not do this; without keys, a page of another site.",
  },
  404: { name: "NotFound", description: "There is no such thing." },
  408: { name: "Timeout", description: "It took too long." },
  409: { name: "Conflict", description: "It cannot be done in the state things are in." },
  415: { name: "UnsupportedMediaType", description: "The Content-Type is not supported here." },
  429: {
    name: "ResourceLimit",
    description: "A limit is reached, of this or of requests; Retry-After says when waiting helps.",
  },
  500: {
    name: "Internal",
    description: "The service or its backend failed; the log has it under the request id.",
  },
  503: { name: "Unavailable", description: "Not now: try again." },
  507: { name: "DiskFull", description: "The disk is full." },
};

const errorContent = { "application/json": { schema: { $ref: "#/components/schemas/Error" } } };

function usualResponses(): Json {
  return Object.fromEntries(
    Object.entries(usualRefusals).map(([status, { name, description }]) => [
      name,
      { description, content: errorContent, ...headersOf(usualHeaders(Number(status))) },
    ]),
  );
}

/** What is too large for a route, with the limit of its JSON bodies. */
function tooLargeText(route: RouteOptions, schema: FastifySchema): string {
  if (schema.openapi?.requestContent !== undefined) return "The body is larger than files.max_upload.";
  if (schema.body === undefined) return "The answer is too large.";
  return `The body is larger than ${limitText(route.bodyLimit ?? usualBodyBytes)}, or the answer is too large.`;
}

/** Every status a route can refuse with. */
function refusals(route: RouteOptions, schema: FastifySchema): number[] {
  const { open, probe } = route.config ?? {};
  if (probe === true) return [500];
  const statuses = [400, 403, 429, 500, 503];
  if (open !== true) statuses.push(401);
  if (route.url.includes("/:")) statuses.push(404);
  if (/\/keys/.test(route.url)) statuses.push(409, 507);
  if (route.url.endsWith("/tickets")) statuses.push(404);
  if (/\/(sandboxes|templates)/.test(route.url)) statuses.push(404, 408, 409, 413, 507);
  if (/\/(quotas|workers\/.*(drain|heartbeat))/.test(route.url)) statuses.push(507);
  if (schema.body !== undefined || schema.openapi?.requestContent !== undefined) statuses.push(413, 415);
  return [...new Set(statuses)].sort();
}

function responsesOf(route: RouteOptions, schema: FastifySchema, refs: SchemaRefs): Json {
  const responses: Json = {};
  for (const [status, body] of Object.entries((schema.response ?? {}) as Json))
    responses[status] = {
      description: status.startsWith("2") ? "Done." : "Refused.",
      content: {
        "application/json": { schema: refs.of(body), ...(status.startsWith("2") ? answerExample(body) : {}) },
      },
    };
  for (const [status, extra] of Object.entries(schema.openapi?.responses ?? {})) {
    const known = responses[status] as { content?: Json } | undefined;
    const content = { ...known?.content, ...(refs.of(extra.content) as Json | undefined) };
    responses[status] = {
      description: extra.description,
      ...(Object.keys(content).length === 0 ? {} : { content }),
    };
  }
  const own = schema.openapi?.headers ?? {};
  const special = (status: number) => own[status] !== undefined || route.config?.probe === true;
  for (const status of refusals(route, schema)) {
    const usual = usualRefusals[status];
    if (usual !== undefined && !special(status))
      responses[status] ??= { $ref: `#/components/responses/${usual.name}` };
    const description = usual?.description ?? tooLargeText(route, schema);
    responses[status] ??= { description, content: errorContent };
  }
  for (const [code, response] of Object.entries(responses as Record<string, Json>)) {
    if ("$ref" in response) continue;
    const status = Number(code);
    const everywhere = route.config?.probe === true ? probeHeaders : usualHeaders(status);
    responses[code] = { ...response, ...headersOf([...everywhere, ...(own[status] ?? [])]) };
  }
  return responses;
}

const probeHeaders: readonly AnswerHeader[] = ["X-Request-ID"];

/** What every answer of a status may have. */
function usualHeaders(status: number): readonly AnswerHeader[] {
  // A handshake is not answered through the framework.
  if (status === 101) return [];
  const waits = status === 429 || status === 502 || status === 503;
  return [
    "X-Request-ID",
    ...(waits ? (["Retry-After"] as const) : []),
    // Who shows no key that is known is not told what is left.
    ...(status === 401 ? [] : (["X-RateLimit-Limit", "X-RateLimit-Remaining"] as const)),
  ];
}

function headersOf(names: readonly AnswerHeader[]): { headers?: Json } {
  if (names.length === 0) return {};
  const refs = names.map((name) => [name, { $ref: `#/components/headers/${name}` }]);
  return { headers: Object.fromEntries(refs) };
}

/** Of a schema that has a name, or of a list of such; the others are one word, or carry their own. */
function answerExample(body: unknown): { example?: unknown } {
  const { $id, items } = body as { $id?: string; items?: { $id?: string } };
  const one = answerExamples[$id ?? items?.$id ?? ""];
  if (one === undefined) return {};
  return { example: $id === undefined ? [one] : one };
}

/** Replaces schemas that have an `$id` by references to components. */
class SchemaRefs {
  readonly #components: Json;

  constructor(components: Json) {
    this.#components = components;
  }

  of(node: unknown): unknown {
    if (Array.isArray(node)) return node.map((item) => this.of(item));
    if (node === null || typeof node !== "object") return node;
    const id = (node as Json).$id;
    if (typeof id !== "string") return this.#children(node);
    this.#components[id] ??= plainSchema(this.#children({ ...node, $id: undefined }));
    return { $ref: `#/components/schemas/${id}` };
  }

  #children(node: object): Json {
    return Object.fromEntries(
      Object.entries(node)
        .filter(([key, value]) => value !== undefined && key !== "x-rule")
        .map(([key, value]) => [
          key,
          key === "properties" ? this.#properties(value as object) : this.of(value),
        ]),
    );
  }

  /** A field that must be absent is `false` in JSON Schema, which generators of clients refuse with all that it stands in. */
  #properties(fields: object): Json {
    return Object.fromEntries(
      Object.entries(fields).map(([name, schema]) => [
        name,
        schema === false ? { not: {} } : this.of(schema),
      ]),
    );
  }
}
