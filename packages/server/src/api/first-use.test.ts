import SerializerSelector from "@fastify/fast-json-stringify-compiler";
import { type FastifySchema, fastify } from "fastify";
import { expect, test } from "vitest";
import { mockProvider } from "../../test/support/providers.ts";
import { startTestServer } from "../../test/support/test-server.ts";
import { checkOnFirstUse, serializersOnFirstUse } from "./first-use.ts";
import { plainSchema, validatorCompiler } from "./validation.ts";

test("a check is compiled once, when something is to be checked, and tells the errors of the last value", async () => {
  const wrong = { keyword: "const", instancePath: "", schemaPath: "#/const", params: {} };
  let compiled = 0;
  const check = checkOnFirstUse(() => {
    compiled += 1;
    return Object.assign((value: unknown) => value === 1, { errors: [wrong] });
  });
  expect(compiled).toBe(0);
  expect([check(1), check(2)]).toEqual([true, false]);
  expect(check.errors).toEqual([wrong]);
  expect(compiled).toBe(1);
});

test("an answer is spelled out by its schema, which is compiled for the first of them", async () => {
  const app = fastify({ schemaController: { compilersFactory: serializersOnFirstUse } });
  const late: Record<string, unknown> = { type: "object" };
  app.get("/", { schema: { response: { 200: late } } }, async () => ({ kept: 1, other: 2 }));
  await app.ready();
  late.properties = { kept: { type: "string" } };
  expect((await app.inject("/")).body).toBe('{"kept":"1"}');
  expect((await app.inject("/")).body).toBe('{"kept":"1"}');
});

test("all that requests are checked by can be compiled, and all that answers are spelled out by", async () => {
  await using server = await startTestServer({ provider: mockProvider });
  const { routes } = server.app.routeTable;
  const spellOut = SerializerSelector()({}, {});
  let compiled = 0;
  for (const { method, url, schema } of routes) {
    for (const httpPart of ["body", "querystring", "params", "headers"] as const) {
      if (schema?.[httpPart] === undefined) continue;
      validatorCompiler({ schema: schema[httpPart] as FastifySchema, method: String(method), url, httpPart })(
        {},
      );
      compiled += 1;
    }
    for (const [httpStatus, answer] of Object.entries(schema?.response ?? {})) {
      expect(spellOut({ schema: plainSchema(answer), method: String(method), url, httpStatus })).toBeTypeOf(
        "function",
      );
      compiled += 1;
    }
  }
  expect(compiled).toBeGreaterThan(100);
});
