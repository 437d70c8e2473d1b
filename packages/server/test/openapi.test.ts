import { readFile } from "node:fs/promises";
import path from "node:path";
import { Ajv2020 } from "ajv/dist/2020.js";
import addFormats from "ajv-formats";
import { expect, test } from "vitest";
import { answerExamples } from "../src/api/answer-examples.ts";
import { answerHeaders } from "../src/api/answer-headers.ts";
import { operationNotes } from "../src/api/operation-notes.ts";
import { TestClient } from "./support/http.ts";
import { currentDocument } from "./support/openapi-document.ts";
import { mockProvider } from "./support/providers.ts";
import { startTestServer } from "./support/test-server.ts";

test("openapi.json is what the routes give; scripts/openapi.ts writes it anew", async () => {
  const file = path.join(import.meta.dirname, "../../../openapi.json");
  expect(await readFile(file, "utf8")).toBe(await currentDocument());
});

test("openapi.json refers to nothing that it does not hold", async () => {
  const text = await currentDocument();
  const document = JSON.parse(text);
  const missing = [...text.matchAll(/"#\/components\/([^/"]+)\/([^"]+)"/g)]
    .filter(([, kind = "", name = ""]) => document.components[kind]?.[name] === undefined)
    .map(([reference]) => reference);
  expect(missing).toEqual([]);
  expect(document.openapi).toBe("3.1.0");
});

test("variants of streams have names, and a field that tells them apart", async () => {
  const { components } = JSON.parse(await currentDocument());
  for (const name of ["ExecStreamChunk", "WsClientMessage", "WsServerMessage"]) {
    const { anyOf, discriminator } = components.schemas[name];
    const variants = anyOf.map((variant: { $ref?: string }) => variant.$ref);
    expect([...new Set(Object.values(discriminator.mapping))].sort()).toEqual([...variants].sort());
    for (const [value, ref] of Object.entries<string>(discriminator.mapping)) {
      const schema = components.schemas[ref.slice(ref.lastIndexOf("/") + 1)];
      const field = schema.properties[discriminator.propertyName];
      expect(field.enum ?? [field.const]).toContain(value);
    }
  }
});

test("what refusals tell a program beside their code is described, and is what they tell", async () => {
  const { components } = JSON.parse(await currentDocument());
  const ajv = new Ajv2020({ strict: false });
  addFormats.default(ajv);
  const validate = ajv.compile(components.schemas.Error);
  const env = { ALCOVE_DEFAULTS_MAX_SANDBOXES: "1" };
  await using server = await startTestServer({ provider: mockProvider, env });
  const client = new TestClient(server.url);
  const { json: sandbox } = await client.call("POST", "/api/v1/sandboxes", {});
  const full = await client.call("POST", "/api/v1/sandboxes", {});
  const within = `/api/v1/sandboxes/${sandbox.id}`;
  const { json: cat } = await client.call("POST", `${within}/execs`, { command: "cat" });
  const input = { input: "lines", offset: 5, data: "later" };
  const early = await client.call("POST", `${within}/execs/${cat.exec_id}/stdin`, input);
  await client.call("DELETE", `/api/v1/sandboxes/${sandbox.id}`);
  const gone = await client.call("GET", `/api/v1/sandboxes/${sandbox.id}`);
  expect(full.json).toMatchObject({ code: "resource_limit", reason: "max_sandboxes" });
  expect(early.json).toMatchObject({ code: "conflict", taken: 0 });
  expect(gone.json).toMatchObject({ code: "not_found", what: "sandbox", sandbox_ended: "destroyed" });
  for (const { json } of [full, early, gone]) {
    expect(validate(json), JSON.stringify(validate.errors)).toBe(true);
    expect(Object.keys(components.schemas.Error.properties)).toEqual(
      expect.arrayContaining(Object.keys(json)),
    );
  }
});

interface Schema {
  $ref?: string;
  type?: string;
  items?: Schema;
  anyOf?: Schema[];
  properties?: Record<string, Schema>;
  examples?: unknown[];
  [keyword: string]: unknown;
}

interface Response {
  $ref?: string;
  headers?: Record<string, unknown>;
  content?: Record<string, { schema: Schema; example?: unknown }>;
}

interface Operation {
  operationId: string;
  summary?: string;
  description?: string;
  parameters?: { name: string; schema: Schema; $ref?: string }[] | undefined;
  responses: Record<string, Response>;
  requestBody?: { content: Record<string, { schema: { $ref?: string }; example?: unknown }> };
}

/** Of the document: parameters and answers that it writes once stand in each operation. */
async function operations(): Promise<{ document: Record<string, unknown>; all: Operation[] }> {
  const document = JSON.parse(await currentDocument());
  const found = <T extends { $ref?: string }>(one: T): T => {
    const [, , kind = "", name = ""] = one.$ref?.split("/") ?? [];
    return one.$ref === undefined ? one : document.components[kind][name];
  };
  const paths = Object.values<Record<string, Operation>>(document.paths);
  const all = paths.flatMap((methods) => Object.values(methods));
  for (const operation of all) {
    operation.parameters = operation.parameters?.map(found);
    for (const [status, answer] of Object.entries(operation.responses))
      operation.responses[status] = found(answer);
  }
  return { document, all };
}

test("every operation has a summary and a description, and every note an operation", async () => {
  const { all } = await operations();
  expect(all.filter(({ summary, description }) => !summary || !description)).toEqual([]);
  const ids = all.map(({ operationId }) => operationId);
  expect(Object.keys(operationNotes).filter((id) => !ids.includes(id))).toEqual([]);
});

test("every JSON body has an example that its schema takes", async () => {
  const { document, all } = await operations();
  const ajv = new Ajv2020({ strict: false });
  addFormats.default(ajv);
  ajv.addSchema(document, "api");
  for (const { operationId, requestBody } of all) {
    const json = requestBody?.content["application/json"];
    if (json === undefined) continue;
    expect(json.example, operationId).toBeDefined();
    const validate = ajv.compile({ $ref: `api${json.schema.$ref}` });
    expect(validate(json.example), `${operationId}: ${ajv.errorsText(validate.errors)}`).toBe(true);
  }
});

test("every operation shows an example: of its body, a parameter or an answer", async () => {
  const { all } = await operations();
  const shows = ({ requestBody, parameters = [], responses }: Operation) =>
    [requestBody, ...Object.values(responses)]
      .flatMap((of) => Object.values(of?.content ?? {}))
      .some(({ example }) => example !== undefined) ||
    parameters.some(({ schema }) => schema.examples !== undefined);
  expect(all.filter((one) => !shows(one)).map(({ operationId }) => operationId)).toEqual([]);
});

test("every JSON answer has an example that its schema takes, or can be one word alone", async () => {
  const { document, all } = await operations();
  const ajv = new Ajv2020({ strict: false });
  addFormats.default(ajv);
  ajv.addSchema(document, "api");
  const { schemas } = document.components as { schemas: Record<string, Schema> };
  const used = new Set<string>();
  for (const { operationId, responses } of all)
    for (const [status, { content = {} }] of Object.entries(responses)) {
      const json = content["application/json"];
      if (!status.startsWith("2") || json === undefined) continue;
      const ref = json.schema.$ref ?? json.schema.items?.$ref;
      if (ref === undefined) {
        const words = Object.values(json.schema.properties ?? {});
        const alone = words.length > 0 && words.every((word) => word.const !== undefined);
        expect(alone || json.schema.examples !== undefined, `${operationId} ${status}`).toBe(true);
        continue;
      }
      const name = ref.slice(ref.lastIndexOf("/") + 1);
      used.add(name);
      expect(json.example, `${operationId} ${status}`).toBeDefined();
      const [example] = json.schema.$ref === undefined ? (json.example as unknown[]) : [json.example];
      const validate = ajv.compile({ $ref: `api${ref}` });
      expect(validate(example), `${name}: ${ajv.errorsText(validate.errors)}`).toBe(true);
      const known = schemas[name]?.properties;
      const keys = known === undefined ? [] : Object.keys(example as object);
      expect(keys.filter((field) => !Object.hasOwn(known ?? {}, field))).toEqual([]);
    }
  expect([...used].sort()).toEqual(Object.keys(answerExamples).sort());
});

test("every text that is a parameter has a pattern, a format, an example or a list of what it may be", async () => {
  const { document, all } = await operations();
  const ajv = new Ajv2020({ strict: false });
  addFormats.default(ajv);
  ajv.addSchema(document, "api");
  for (const { operationId, parameters = [] } of all)
    for (const { name, schema } of parameters) {
      const { type, pattern, format, examples, anyOf = [] } = schema;
      const texts = type === "string" || anyOf.some((one) => one.type === "string");
      expect(!texts || (pattern ?? format ?? examples) !== undefined, `${operationId}: ${name}`).toBe(true);
      const validate = ajv.compile(schema);
      expect((examples ?? []).filter((example) => !validate(example))).toEqual([]);
    }
});

test("every operation that takes a key takes x-user-id, and streamEvents last-event-id", async () => {
  const { all } = await operations();
  const takes = (name: string) => (operation: Operation) =>
    operation.parameters?.some((parameter) => parameter.name === name) === true;
  const open = ["getHealth", "getLiveness", "getReadiness"];
  const without = all.filter((operation) => !takes("x-user-id")(operation));
  expect(without.map(({ operationId }) => operationId).sort()).toEqual(open);
  expect(all.filter(takes("last-event-id")).map(({ operationId }) => operationId)).toEqual(["streamEvents"]);
});

test("each header that pages of other origins may read is one of some answer", async () => {
  const { all } = await operations();
  const told = all.flatMap(({ responses }) =>
    Object.values(responses).flatMap(({ headers = {} }) => Object.keys(headers)),
  );
  expect([...new Set(told)].sort()).toEqual(Object.keys(answerHeaders).sort());
});

test("answers have no header of those but what openapi.json tells, and each comes", async () => {
  await using server = await startTestServer({
    provider: mockProvider,
    env: { ALCOVE_RATE_LIMIT_ENABLED: "true", ALCOVE_RATE_LIMIT_BURST: "30" },
  });
  const { all } = await operations();
  const client = new TestClient(server.url);
  const seen = new Set<string>();
  const call = async (operationId: string, method: string, to: string, ...rest: [unknown?, object?]) => {
    const [body, headers = {}] = rest;
    const answer = await client.call(method, `/api/v1${to}`, body, { ...headers });
    const told = all.find((one) => one.operationId === operationId)?.responses[answer.status];
    const names = Object.keys(answerHeaders).filter((name) => answer.headers.has(name));
    const untold = names.filter((name) => told?.headers?.[name] === undefined);
    expect(untold, `${operationId} ${answer.status}`).toEqual([]);
    for (const name of names) seen.add(name);
    return answer;
  };
  const once = { "idempotency-key": "order-4711" };
  const { id } = (await call("spawnSandbox", "POST", "/sandboxes", {}, once)).json;
  await call("spawnSandbox", "POST", "/sandboxes", {}, once);
  for (let times = 0; times < 2; times++)
    await call("acquireSandbox", "POST", "/sandboxes/acquire", { name: "web" });
  await call("listSandboxes", "GET", "/sandboxes?limit=1");
  await call("listSandboxStats", "GET", "/sandboxes/stats?limit=1");
  for (const name of ["a", "b"]) await call("createTemplate", "POST", "/templates", { name, image: "mock" });
  await call("listTemplates", "GET", "/templates?limit=1");
  await call("spawnFromTemplate", "POST", "/templates/a/spawn", {}, { "idempotency-key": "order-4712" });
  for (const owner of ["ann", "bob"])
    await call("saveQuota", "PUT", `/quotas/${owner}`, { max_sandboxes: 2 });
  await call("listQuotas", "GET", "/quotas?limit=1");
  await call("adminListQuotas", "GET", "/admin/quotas?limit=1");
  await call("listAudit", "GET", "/admin/audit?limit=1");
  await call("exec", "POST", `/sandboxes/${id}/exec`, { command: "echo hi" });
  await call("exec", "POST", `/sandboxes/${id}/exec`, { command: "echo hi", stream: true });
  await call("exec", "POST", `/sandboxes/${id}/exec`, { command: "sleep 60", timeout: "50ms" });
  const { exec_id } = (await call("startExec", "POST", `/sandboxes/${id}/execs`, { command: "echo hi" }))
    .json;
  await call("getExec", "GET", `/sandboxes/${id}/execs/${exec_id}`);
  await call("getExecOutput", "GET", `/sandboxes/${id}/execs/${exec_id}/output`);
  await call("writeFile", "POST", `/sandboxes/${id}/files`, { path: "/workspace/a", content: "abc" });
  const file = `/sandboxes/${id}/files?path=/workspace/a`;
  expect((await call("readFile", "GET", file, undefined, { range: "bytes=0-1" })).status).toBe(206);
  expect((await call("readFile", "GET", file, undefined, { range: "bytes=9-" })).status).toBe(416);
  await call("getSandbox", "GET", "/sandboxes/sb-000000000000");
  await call("getHealth", "GET", "/health");
  let last = 0;
  while (last !== 429) last = (await call("listProviders", "GET", "/providers")).status;
  expect([...seen].sort()).toEqual(Object.keys(answerHeaders).sort());
});
