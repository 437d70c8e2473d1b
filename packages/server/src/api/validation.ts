import { nearest } from "@alcove/wire";
import { Ajv, type ErrorObject, type ValidateFunction } from "ajv";
import addFormats from "ajv-formats";
import type { FastifySchema, FastifySchemaCompiler } from "fastify";
import { BadRequest } from "../ports/errors.ts";

type JsonSchema = { readonly [key: string]: unknown };

const common = {
  strict: false,
  allErrors: false,
  useDefaults: true,
  removeAdditional: false,
  verbose: true,
} as const;

/** Bodies mean what they say: "512" is no integer. */
const strictAjv = makeAjv({ ...common, coerceTypes: false });
/** Path and query are text, so numbers and booleans are read from text. */
const textAjv = makeAjv({ ...common, coerceTypes: true });

function makeAjv(options: ConstructorParameters<typeof Ajv>[0]): Ajv {
  const ajv = new Ajv(options);
  addFormats.default(ajv);
  return ajv;
}

export const validatorCompiler: FastifySchemaCompiler<FastifySchema> = ({ schema, httpPart }) =>
  (httpPart === "body" ? strictAjv : textAjv).compile(checkedSchema(schema));

/** @returns a check for values that arrive outside of HTTP bodies, such as WebSocket messages. */
export function compileCheck<T>(schema: object): (value: unknown) => T {
  const validate: ValidateFunction<T> = strictAjv.compile<T>(checkedSchema(schema));
  return (value) => {
    if (validate(value)) return value;
    throw new BadRequest(describe(validate.errors?.[0], "message"));
  };
}

/**
 * A copy without `$id`s, which may occur only once in a validator, and with records that hold for every key: the pattern
 * TypeBox writes for them, `^.*$`, lets keys with a line break through unchecked.
 */
export function plainSchema(schema: unknown): JsonSchema {
  return simplify(schema) as JsonSchema;
}

/** What core checks itself, in better words; see wire's texts.ts. */
const coreKeywords = new Set(["x-rule", "pattern", "anyOf"]);

/** A copy as `plainSchema`, for the validator: without what a schema leaves to core. */
function checkedSchema(schema: unknown): JsonSchema {
  return withoutCoreRules(plainSchema(schema)) as JsonSchema;
}

function withoutCoreRules(node: unknown): unknown {
  if (Array.isArray(node)) return node.map(withoutCoreRules);
  if (node === null || typeof node !== "object") return node;
  const ruled = "x-rule" in node && node["x-rule"] === "core";
  const kept = Object.entries(node).filter(([key]) => !ruled || !coreKeywords.has(key));
  return Object.fromEntries(kept.map(([key, value]) => [key, withoutCoreRules(value)]));
}

function simplify(node: unknown): unknown {
  if (Array.isArray(node)) return node.map(simplify);
  if (node === null || typeof node !== "object") return node;
  const copy: Record<string, unknown> = {};
  for (const [key, value] of Object.entries(node)) {
    if (key === "$id" && typeof value === "string") continue;
    if (key === "patternProperties" && isEveryKey(value)) copy.additionalProperties = simplify(value["^.*$"]);
    else copy[key] = simplify(value);
  }
  return copy;
}

function isEveryKey(value: unknown): value is { "^.*$": unknown } {
  return value !== null && typeof value === "object" && "^.*$" in value && Object.keys(value).length === 1;
}

/** Names the field that is wrong and how. */
export function validationMessage(error: {
  validation?: unknown;
  validationContext?: string | undefined;
}): string {
  const first = Array.isArray(error.validation) ? (error.validation[0] as ErrorObject) : undefined;
  return describe(first, error.validationContext ?? "body");
}

const contextNames: Readonly<Record<string, string>> = {
  body: "the body",
  querystring: "the query",
  params: "the path",
  message: "the message",
};

function describe(error: ErrorObject | undefined, context: string): string {
  const place = contextNames[context] ?? context;
  if (error === undefined) return `${place} is not valid`;
  const field = error.instancePath.slice(1).replaceAll("/", ".").replaceAll("~1", "/").replaceAll("~0", "~");
  const name = field === "" ? place : `${field.slice(0, 200)} in ${place}`;
  switch (error.keyword) {
    case "additionalProperties":
      return `${field === "" ? "" : `${field}.`}${String(error.params.additionalProperty).slice(0, 100)} is not a field of ${place}${meant(error)}`;
    case "required":
      return `${field === "" ? "" : `${field}.`}${String(error.params.missingProperty)} is missing in ${place}`;
    case "enum":
      return `${name} must be one of ${(error.params.allowedValues as unknown[]).map((value) => JSON.stringify(value)).join(", ")}`;
    case "anyOf":
      return `${name} has a value that is not allowed here`;
    default:
      return `${name} ${error.message ?? "is not valid"}`;
  }
}

/** What fields are called elsewhere, and here. */
const synonyms: Readonly<Record<string, readonly string[]>> = {
  cwd: ["workdir"],
  working_dir: ["workdir"],
  working_directory: ["workdir"],
  timeout_ms: ["timeout"],
  timeout_seconds: ["timeout"],
  time_limit: ["timeout"],
  envs: ["env"],
  environment: ["env"],
  cmd: ["command"],
  code: ["command"],
  input: ["stdin"],
  username: ["user"],
  labels: ["metadata"],
  cpus: ["vcpus"],
  memory: ["memory_mb"],
  lifetime: ["ttl"],
  content_base64: ["content"],
  file: ["path"],
};

/** The field that was probably meant, as the end of a sentence. */
function meant(error: ErrorObject): string {
  const name = String(error.params.additionalProperty).slice(0, 100);
  const properties: unknown = error.parentSchema?.properties;
  const known = properties !== null && typeof properties === "object" ? Object.keys(properties) : [];
  const synonym = (Object.hasOwn(synonyms, name) ? synonyms[name] : undefined)?.find((field) =>
    known.includes(field),
  );
  const field = synonym ?? nearest(name, known, Math.floor(name.length / 3));
  return field === undefined ? "" : `; did you mean ${field}?`;
}
