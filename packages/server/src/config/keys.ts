import type { TSchema } from "typebox";
import { ConfigSchema } from "./schema.ts";

export type KeyKind =
  | "text"
  | "secret"
  | "duration"
  | "bytes"
  | "integer"
  | "ratio"
  | "flag"
  | "choice"
  | "list"
  | "map"
  | "entries";

/** One key of the configuration, as the schema describes it. */
export interface ConfigKey {
  /** With dots: `providers.native.disk_mb`. */
  key: string;
  /** `ALCOVE_PROVIDERS_NATIVE_DISK_MB`. */
  env: string;
  kind: KeyKind;
  /** As a file would spell it; undefined for keys that may stay unset. */
  default: unknown;
  description: string;
  /** Of a choice. */
  values: readonly string[];
  minimum: number | undefined;
  maximum: number | undefined;
  /** What each of the entries looks like. */
  items: TSchema | undefined;
}

/** A group of keys, with what it is about. */
export interface ConfigSection {
  key: string;
  description: string;
}

/** What this module reads of a JSON schema. */
interface SchemaNode {
  type?: unknown;
  properties?: unknown;
  items?: unknown;
  patternProperties?: unknown;
  anyOf?: unknown;
  enum?: unknown;
  default?: unknown;
  description?: unknown;
  minimum?: unknown;
  maximum?: unknown;
  "x-kind"?: unknown;
}

export const envPrefix = "ALCOVE_";

/** Every key, in the order of the schema. */
export const configKeys: readonly ConfigKey[] = [...walk(ConfigSchema, [])];

/** Every section, in the order of the schema, the unnamed outermost one left out. */
export const configSections: readonly ConfigSection[] = [...walkSections(ConfigSchema, [])];

function* walk(node: SchemaNode, path: readonly string[]): Generator<ConfigKey> {
  for (const [name, child] of properties(node)) {
    const childPath = [...path, name];
    if (child.properties !== undefined) yield* walk(child, childPath);
    else yield keyOf(child, childPath);
  }
}

function* walkSections(node: SchemaNode, path: readonly string[]): Generator<ConfigSection> {
  for (const [name, child] of properties(node)) {
    if (child.properties === undefined) continue;
    const childPath = [...path, name];
    yield { key: childPath.join("."), description: textOr(child.description, "") };
    yield* walkSections(child, childPath);
  }
}

function keyOf(node: SchemaNode, path: readonly string[]): ConfigKey {
  return {
    key: path.join("."),
    env: envPrefix + path.join("_").toUpperCase(),
    kind: kindOf(node, path),
    default: node.default,
    description: textOr(node.description, ""),
    values: Array.isArray(node.enum) ? node.enum.map(String) : [],
    minimum: typeof node.minimum === "number" ? node.minimum : undefined,
    maximum: typeof node.maximum === "number" ? node.maximum : undefined,
    items: isObject(node.items) ? (node.items as TSchema) : undefined,
  };
}

function kindOf(node: SchemaNode, path: readonly string[]): KeyKind {
  const kind = node["x-kind"];
  if (kind === "duration" || kind === "bytes" || kind === "secret") return kind;
  if (Array.isArray(node.enum)) return "choice";
  if (node.patternProperties !== undefined) return "map";
  switch (node.type) {
    case "string":
      return "text";
    case "integer":
      return "integer";
    case "number":
      return "ratio";
    case "boolean":
      return "flag";
    case "array":
      return isObject(node.items) && node.items.properties !== undefined ? "entries" : "list";
    default:
      throw new Error(`the schema of ${path.join(".")} has a shape that configuration cannot load`);
  }
}

function properties(node: SchemaNode): [string, SchemaNode][] {
  return typeof node.properties === "object" && node.properties !== null
    ? Object.entries(node.properties)
    : [];
}

function isObject(value: unknown): value is SchemaNode {
  return typeof value === "object" && value !== null;
}

function textOr(value: unknown, fallback: string): string {
  return typeof value === "string" ? value : fallback;
}
