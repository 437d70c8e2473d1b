import { readFile } from "node:fs/promises";
import path from "node:path";
import { Ajv2020 } from "ajv/dist/2020.js";
import addFormats from "ajv-formats";
import { expect, test } from "vitest";
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

interface Operation {
  operationId: string;
  summary?: string;
  description?: string;
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
