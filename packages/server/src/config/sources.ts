import { readFileSync, statSync } from "node:fs";
import path from "node:path";
import { nearest } from "@alcove/wire";
import { parseDocument } from "yaml";
import type { ConfigProblem } from "./errors.ts";
import { type ConfigKey, configKeys, configSections, envPrefix } from "./keys.ts";
import { type ConfigValue, isMap, type ReadResult, readText, readValue } from "./values.ts";

/** A value that was given, and where. */
export interface Given {
  value: ConfigValue;
  /** For messages: `alcove.yaml`, `$ALCOVE_SERVER_PORT`, `--port`. */
  source: string;
}

/** What was given, by key, and what was wrong with it. */
export interface Gathered {
  given: Map<string, Given>;
  problems: ConfigProblem[];
}

const maxFileBytes = 1_048_576;

/** Variables with our prefix that are no keys: the client's, and where the file is. */
const otherVariables: ReadonlySet<string> = new Set(["ALCOVE_CONFIG", "ALCOVE_URL", "ALCOVE_API_KEY"]);

/** Kubernetes sets these in every pod beside a service called `alcove`. */
const serviceLinkPattern =
  /^ALCOVE_(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_\d+_(TCP|UDP)(_(PROTO|PORT|ADDR))?)?)$/;

/** `ALCOVE_PORT` of a service link is an address; a number there was meant for this service, and is told to be unknown. */
function isServiceLink(name: string, text: string): boolean {
  return serviceLinkPattern.test(name) && (name !== "ALCOVE_PORT" || /^[a-z]+:\/\//.test(text));
}

/** @returns the configuration file to read, absolute, or undefined when there is none. */
export function findConfigFile(options: {
  file?: string | undefined;
  systemFile?: string;
  env: NodeJS.ProcessEnv;
  cwd: string;
}): string | undefined {
  const named = options.file ?? (options.env.ALCOVE_CONFIG || undefined);
  if (named !== undefined) return path.resolve(options.cwd, named);
  const home = options.env.HOME;
  const usual = [
    path.join(options.cwd, "alcove.yaml"),
    ...(home ? [path.join(home, ".config", "alcove", "config.yaml")] : []),
    ...(options.systemFile === undefined ? [] : [options.systemFile]),
  ];
  return usual.find((file) => statSync(file, { throwIfNoEntry: false })?.isFile() === true);
}

export function gatherFile(file: string, into: Gathered): void {
  const name = path.basename(file);
  const text = readBounded(file, maxFileBytes);
  if (text.error !== undefined) {
    into.problems.push({ key: "", message: `${file}: ${text.error}` });
    return;
  }
  const document = parseDocument(text.content, { prettyErrors: true });
  for (const error of document.errors) {
    into.problems.push({ key: "", message: `${file}: ${error.message.split("\n")[0]}` });
  }
  if (document.errors.length > 0) return;
  const content: unknown = document.toJS({ maxAliasCount: 100 });
  if (content === null || content === undefined) return;
  if (!isMap(content)) {
    into.problems.push({ key: "", message: `${file}: expected keys and values at the top level` });
    return;
  }
  gatherMap(content, "", name, into);
}

/** Overrides given on the command line: key to text. */
export function gatherOverrides(
  overrides: ReadonlyMap<string, { text: string; source: string }>,
  into: Gathered,
): void {
  for (const [name, { text, source }] of overrides) {
    const key = configKeys.find((candidate) => candidate.key === name);
    if (key === undefined) into.problems.push(unknownKey(name, source));
    else accept(key, readText(key, text), text, source, into);
  }
}

/** Variables that are empty count as not set. */
export function gatherEnvironment(env: NodeJS.ProcessEnv, into: Gathered): void {
  for (const name of Object.keys(env).sort()) {
    const text = env[name];
    if (!name.startsWith(envPrefix) || text === undefined || text === "") continue;
    if (otherVariables.has(name) || isServiceLink(name, text)) continue;
    const key = configKeys.find((candidate) => candidate.env === name);
    if (key !== undefined) accept(key, readText(key, text), text, `$${name}`, into);
    else if (!gatherMapVariable(name, text, into)) into.problems.push(unknownVariable(name));
  }
}

/** `ALCOVE_IMAGES_ALIASES_debian=host` sets one entry of a map; the rest of the name keeps its case. */
function gatherMapVariable(name: string, text: string, into: Gathered): boolean {
  const key = configKeys.find(
    (candidate) => candidate.kind === "map" && name.startsWith(`${candidate.env}_`),
  );
  if (key === undefined) return false;
  const before = into.given.get(key.key)?.value;
  const entries = isMap(before) ? Object.entries(before).map(([k, v]) => [k, String(v)] as const) : [];
  const value = Object.fromEntries([...entries, [name.slice(key.env.length + 1), text] as const]);
  into.given.set(key.key, { value, source: `$${name}` });
  return true;
}

function gatherMap(content: Record<string, unknown>, prefix: string, file: string, into: Gathered): void {
  for (const [name, value] of Object.entries(content)) {
    const full = prefix === "" ? name : `${prefix}.${name}`;
    const key = configKeys.find((candidate) => candidate.key === full);
    if (key !== undefined) {
      if (value !== null) accept(key, readValue(key, value), value, file, into);
    } else if (!configSections.some((section) => section.key === full)) {
      into.problems.push(unknownKey(full, file));
    } else if (isMap(value)) {
      gatherMap(value, full, file, into);
    } else if (value !== null) {
      into.problems.push({
        key: full,
        message: `${full} is ${show(value)} in ${file}: expected keys below it`,
      });
    }
  }
}

function accept(key: ConfigKey, result: ReadResult, value: unknown, source: string, into: Gathered): void {
  if (result.ok) {
    into.given.set(key.key, { value: result.value, source });
    return;
  }
  // Entries may hold a key where its file or hash belongs.
  const hidden = key.kind === "secret" || key.kind === "entries";
  const shown = hidden ? "a value of the wrong kind" : show(value);
  into.problems.push({
    key: key.key,
    message: `${key.key} is ${shown} (${source}): expected ${result.expected}`,
  });
}

function unknownKey(name: string, source: string): ConfigProblem {
  const known = nearest(
    name,
    [...configKeys, ...configSections].map(({ key }) => key),
  );
  const hint = known === undefined ? "docs/configuration.md lists the keys" : `did you mean ${known}?`;
  return { key: name, message: `unknown key ${name} (${source}); ${hint}` };
}

function unknownVariable(name: string): ConfigProblem {
  if (name === "ALCOVE_PORT")
    return { key: name, message: `unknown variable ${name}; did you mean ALCOVE_SERVER_PORT?` };
  const known = nearest(name, [...configKeys.map(({ env }) => env), ...otherVariables]);
  const hint = known === undefined ? "docs/configuration.md lists the keys" : `did you mean ${known}?`;
  return { key: name, message: `unknown variable ${name} in the environment; ${hint}` };
}

function show(value: unknown): string {
  const text = JSON.stringify(value) ?? String(value);
  return text.length > 80 ? `${text.slice(0, 77)}…` : text;
}

export function readBounded(
  file: string,
  maxBytes: number,
): { content: string; error?: undefined } | { content?: undefined; error: string } {
  try {
    const { size } = statSync(file);
    if (size > maxBytes) return { error: `holds ${size} bytes, more than the ${maxBytes} allowed` };
    return { content: readFileSync(file, "utf8") };
  } catch (error) {
    return { error: error instanceof Error ? error.message : String(error) };
  }
}
