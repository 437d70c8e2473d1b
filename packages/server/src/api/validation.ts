import { nearest } from "@alcove/wire";
import { _, Ajv, type ErrorObject, str, type ValidateFunction } from "ajv";
import addFormats from "ajv-formats";
import type { FastifySchema, FastifySchemaCompiler } from "fastify";
import { BadRequest } from "../ports/errors.ts";
import { checkOnFirstUse } from "./first-use.ts";

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
  limitLength(ajv, "maxLength", (text, most) => text.length <= most || !longerThan(text, most));
  limitLength(ajv, "minLength", (text, least) => text.length >= 2 * least || longerThan(text, least - 1));
  return ajv;
}

/** Ajv's own count all characters of a text first, also of one of megabytes. */
function limitLength(ajv: Ajv, keyword: string, holds: (text: string, limit: number) => boolean): void {
  ajv.removeKeyword(keyword);
  ajv.addKeyword({
    keyword,
    type: "string",
    schemaType: "number",
    compile: (limit: number) => (text: string) => holds(text, limit),
    error: {
      message: ({ schemaCode }) =>
        str`must NOT have ${keyword === "maxLength" ? "more" : "fewer"} than ${schemaCode} characters`,
      params: ({ schemaCode }) => _`{limit: ${schemaCode}}`,
    },
  });
}

/** Whether it has more characters, one of which takes at most two units. */
function longerThan(text: string, limit: number): boolean {
  if (text.length > 2 * limit) return true;
  let characters = 0;
  for (const _character of text) if (++characters > limit) return true;
  return false;
}

export const validatorCompiler: FastifySchemaCompiler<FastifySchema> = ({ schema, httpPart }) =>
  checkOnFirstUse(() => (httpPart === "body" ? strictAjv : textAjv).compile(checkedSchema(schema)));

/** @returns a check for values that arrive outside of HTTP bodies, such as WebSocket messages. */
export function compileCheck<T>(schema: object): (value: unknown) => T {
  let compiled: ValidateFunction<T> | undefined;
  return (value) => {
    compiled ??= strictAjv.compile<T>(checkedSchema(schema));
    const validate = compiled;
    if (validate(value)) return value;
    throw new BadRequest(describe(decisive(validate.errors ?? []), "message").toWellFormed());
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
const coreKeywords = new Set(["x-rule", "pattern", "anyOf", "minimum", "maximum"]);

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

/** Names the field that is wrong and how; what it repeats of the request is cut, and a cut may leave half of a surrogate pair. */
export function validationMessage(error: {
  validation?: unknown;
  validationContext?: string | undefined;
}): string {
  const errors = Array.isArray(error.validation) ? (error.validation as ErrorObject[]) : [];
  return describe(decisive(errors), error.validationContext ?? "body").toWellFormed();
}

/**
 * The error that tells most. A value that fits no kind of a union has an error for each; what is wrong with it is what the
 * kind says that it is of.
 */
function decisive(errors: readonly ErrorObject[]): ErrorObject | undefined {
  const union = errors.at(-1);
  if (union?.keyword !== "anyOf") return errors[0] && mistyped(errors[0]);
  const kind = errors.find(({ keyword }) => keyword !== "type" && keyword !== "anyOf");
  return kind === undefined ? union : mistyped(kind);
}

/** What is missing was mostly written under another name, which tells more than that it is missing. */
function mistyped(error: ErrorObject): ErrorObject {
  const { keyword, data, parentSchema } = error;
  if (keyword !== "required" || parentSchema?.additionalProperties !== false) return error;
  const known: unknown = parentSchema.properties;
  if (data === null || typeof data !== "object" || known === null || typeof known !== "object") return error;
  const unknown = Object.keys(data).find((name) => !Object.hasOwn(known, name));
  if (unknown === undefined) return error;
  return { ...error, keyword: "additionalProperties", params: { additionalProperty: unknown } };
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
  const of = field === "" ? place : `${field.slice(0, 200)} in ${place}`;
  const name = error.propertyName === undefined ? of : `the name ${shown(error.propertyName)} of ${of}`;
  switch (error.keyword) {
    case "additionalProperties":
      return `${field === "" ? "" : `${field}.`}${named(String(error.params.additionalProperty))} is not a field of ${place}${meant(error)}`;
    case "required":
      return `${field === "" ? "" : `${field}.`}${String(error.params.missingProperty)} is missing in ${place}`;
    case "enum":
      return `${name} must be one of ${chosenFrom(error.params.allowedValues as unknown[])}, not ${shown(error.data)}`;
    case "type":
      return `${name} must be ${wanted(error)}`;
    case "pattern":
      return `${name} must be ${described(error) ?? `as ${String(error.params.pattern)}`}, not ${shown(error.data)}`;
    case "format":
      return `${name} must be ${formats[String(error.params.format)] ?? String(error.params.format)}, not ${shown(error.data)}`;
    case "minLength":
      return error.params.limit === 1
        ? `${name} must not be empty`
        : `${name} must have at least ${String(error.params.limit)} characters`;
    case "maxLength":
      return `${name} may have ${String(error.params.limit)} characters and has ${charactersOf(String(error.data))}${wayOut[lastOf(field)] ?? ""}`;
    case "minimum":
    case "maximum":
      return `${name} must be ${range(error)}, not ${shown(error.data)}`;
    case "anyOf":
      return `${name} must be ${union(error)}, not ${shown(error.data)}`;
    default:
      return `${name} ${error.message ?? "is not valid"}`;
  }
}

/** An empty text is a field that is not given, and nothing to choose. */
const chosenFrom = (values: unknown[]): string =>
  values
    .filter((value) => value !== "")
    .map((value) => JSON.stringify(value))
    .join(", ");
const lastOf = (field: string): string => field.split(".").at(-1) ?? "";
/** Of a long text only its beginning is looked at: what is refused must not cost more than what is taken. */
const shown = (value: unknown): string =>
  (JSON.stringify(typeof value === "string" ? value.slice(0, 64) : value) ?? "nothing").slice(0, 64);
const charactersOf = (text: string): number => (text.length > 10_000 ? text.length : [...text].length);
/** A name that a caller made up, fit for a terminal. */
const named = (name: string): string => JSON.stringify(name.slice(0, 100)).slice(1, -1);

/** What may be done instead of a text that is too long. */
const wayOut: Readonly<Record<string, string>> = {
  stdin: "; leave stdin out and send it in parts with POST …/stdin, or run the command buffered",
};

/** The kind of value that is wanted; where a value shows what was meant, how to write that. */
function wanted({ instancePath, params, data, parentSchema }: ErrorObject): string {
  const field = instancePath.split("/").at(-1);
  if (field === "command" && Array.isArray(data) && data.length > 0) {
    const [command, ...args] = data;
    const instead = { mode: "argv", command, args };
    return `a text; for a program and its arguments send ${JSON.stringify(instead).slice(0, 200)}`;
  }
  const [example]: unknown[] = Array.isArray(parentSchema?.examples) ? parentSchema.examples : [];
  if (params.type === "string" && example === "30s")
    return `a text with units such as ${JSON.stringify(typeof data === "number" && data > 0 ? `${data}s` : example)}, not ${shown(data)}`;
  const kind = kinds[String(params.type)] ?? String(params.type);
  return `${kind}${example === undefined ? "" : ` such as ${JSON.stringify(example)}`}, not ${shown(data)}`;
}

const kinds: Readonly<Record<string, string>> = {
  string: "a text",
  integer: "a whole number",
  number: "a number",
  boolean: "true or false",
  array: "a list",
  object: "an object",
};

const formats: Readonly<Record<string, string>> = { "date-time": "a time such as 2026-11-21T17:44:03Z" };

/** What a schema says of its values: the first sentence of its description. */
function described({ parentSchema }: ErrorObject): string | undefined {
  const description: unknown = parentSchema?.description;
  return typeof description === "string" ? description.split(". ", 1)[0]?.replace(/\.$/, "") : undefined;
}

function range({ parentSchema, message }: ErrorObject): string {
  const { minimum, maximum } = parentSchema ?? {};
  if (minimum === undefined || maximum === undefined) return String(message ?? "").replace("must be ", "");
  return `from ${String(minimum)} to ${String(maximum)}`;
}

function union({ schema }: ErrorObject): string {
  const types = (Array.isArray(schema) ? schema : []).map((kind: { type?: unknown }) => kind.type);
  const words = types.map((type) => kinds[String(type)]);
  return words.every((word) => word !== undefined) ? words.join(" or ") : "one of the kinds allowed here";
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
  tags: ["metadata"],
  owner: ["owner_id"],
  user_id: ["owner_id"],
  network_mode: ["network"],
  cpus: ["vcpus", "cpu_time"],
  memory: ["memory_mb"],
  lifetime: ["ttl"],
  timeout: ["ttl"],
  cpu: ["vcpus", "cpu_time"],
  cpu_ms: ["cpu_time"],
  output: ["output_bytes"],
  content_base64: ["content"],
  file: ["path"],
};

/** What a command that is answered at once cannot have. */
const terminalFields = new Set(["tty", "cols", "rows"]);

/** What says elsewhere that nobody waits for a command. */
const detachedFields = new Set(["background", "detach", "detached", "async", "wait"]);

/** The field that was probably meant, as the end of a sentence. */
function meant(error: ErrorObject): string {
  const name = String(error.params.additionalProperty).slice(0, 100);
  const properties: unknown = error.parentSchema?.properties;
  const known = properties !== null && typeof properties === "object" ? Object.keys(properties) : [];
  const synonym = (Object.hasOwn(synonyms, name) ? synonyms[name] : undefined)?.find((field) =>
    known.includes(field),
  );
  if (terminalFields.has(name) && known.includes("stream"))
    return "; a terminal is for POST …/execs and the WebSocket";
  if (detachedFields.has(name) && known.includes("stream"))
    return "; POST …/execs starts a command that nobody waits for";
  // Of a spawn; no other route reads it.
  if (name === "idempotency_key" && known.includes("ttl") && known.includes("image"))
    return "; it is the header Idempotency-Key";
  const field = synonym ?? nearest(name, known, Math.floor(name.length / 3));
  return field === undefined ? "" : `; did you mean ${field}?`;
}
