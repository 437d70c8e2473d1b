import { readFile } from "node:fs/promises";
import path from "node:path";
import { Ajv2020 } from "ajv/dist/2020.js";
import addFormats from "ajv-formats";
import { expect, test } from "vitest";
import { answerExamples } from "../src/api/answer-examples.ts";
import { operationNotes } from "../src/api/operation-notes.ts";
import { currentDocument } from "./support/openapi-document.ts";

test("openapi.json is what the routes give; scripts/openapi.ts writes it anew", async () => {
  const file = path.join(import.meta.dirname, "../../../openapi.json");
  expect(await readFile(file, "utf8")).toBe(await currentDocument());
});

test("openapi.json refers to nothing that it does not hold", async () => {
  const text = await currentDocument();
  const document = JSON.parse(text);
  const names = new Set(Object.keys(document.components.schemas));
  const missing = [...text.matchAll(/"#\/components\/schemas\/([^"]+)"/g)]
    .map((match) => match[1] ?? "")
    .filter((name) => !names.has(name));
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

interface Schema {
  $ref?: string;
  type?: string;
  items?: Schema;
  anyOf?: Schema[];
  properties?: Record<string, Schema>;
  examples?: unknown[];
  [keyword: string]: unknown;
}

interface Operation {
  operationId: string;
  summary?: string;
  description?: string;
  parameters?: { name: string; schema: Schema }[];
  responses: Record<string, { content?: Record<string, { schema: Schema; example?: unknown }> }>;
  requestBody?: { content: Record<string, { schema: { $ref?: string }; example?: unknown }> };
}

async function operations(): Promise<{ document: Record<string, unknown>; all: Operation[] }> {
  const document = JSON.parse(await currentDocument());
  const paths = Object.values<Record<string, Operation>>(document.paths);
  return { document, all: paths.flatMap((methods) => Object.values(methods)) };
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
