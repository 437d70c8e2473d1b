import { readdirSync, readFileSync } from "node:fs";
import * as wire from "@alcove/wire";
import { describe, expect, test } from "vitest";
import { configKeys } from "../src/config/keys.ts";

/**
 * The tables of docs/api against the schemas they describe. A comment in front of a table names what it holds: `fields:`
 * the properties of schemas, `values:` a list of names. Names stand in backticks in the first column.
 */
const folder = new URL("../../../docs/api/", import.meta.url);
const pages = readdirSync(folder).map((name) => readFileSync(new URL(name, folder), "utf8"));

interface Table {
  kind: string;
  of: string;
  rows: string[][];
}
const tables: Table[] = pages.flatMap((page) =>
  [...page.matchAll(/^<!-- (\w+)(?:: (.+))? -->\n\n((?:\|.*\n)+)/gm)].map(
    ([, kind = "", of = "", table = ""]) => ({
      kind,
      of,
      rows: table
        .trim()
        .split("\n")
        .slice(2)
        .map((row) =>
          row
            .split("|")
            .slice(1, -1)
            .map((cell) => cell.trim()),
        ),
    }),
  ),
);
const ofKind = (kind: string) => tables.filter((table) => table.kind === kind);
const names = (cell: string | undefined) =>
  [...(cell ?? "").matchAll(/`([^`]+)`/g)].map(([, name = ""]) => name);
const firstColumn = ({ rows }: Table) => rows.flatMap(([cell]) => names(cell)).sort();

interface Schema {
  properties?: Record<string, unknown>;
  anyOf?: Schema[];
}
const schemas = Object.entries(wire as Record<string, unknown>).filter(
  (entry): entry is [string, Schema] =>
    typeof entry[1] === "object" && entry[1] !== null && "$id" in entry[1],
);
const fieldsOf = (name: string): string[] => {
  const schema = schemas.find(([known]) => known === name)?.[1];
  if (schema === undefined) throw new Error(`wire has no schema ${name}`);
  const variants = schema.properties === undefined ? (schema.anyOf ?? []) : [schema];
  return variants.flatMap((variant) => Object.keys(variant.properties ?? {}));
};

describe("tables of docs/api", () => {
  test.each(ofKind("fields"))("fields of $of", (table) => {
    const [of = "", without] = table.of.split(" - ");
    const left = without === undefined ? [] : fieldsOf(without);
    const fields = new Set(of.split(", ").flatMap(fieldsOf));
    expect(firstColumn(table)).toEqual([...fields].filter((field) => !left.includes(field)).sort());
  });

  const values: Record<string, readonly string[]> = {
    errorCodes: wire.errorCodes,
    limitReasons: wire.limitReasons,
    missingThings: wire.missingThings,
    sandboxEndings: wire.sandboxEndings,
    goingOn: wire.goingOn,
    admissionReasons: wire.admissionReasons.filter((reason) => reason !== ""),
    capabilities: wire.capabilities,
    sandboxStates: wire.sandboxStates,
    watchTypes: wire.WatchEvent.properties.type.enum,
  };
  test.each(ofKind("values"))("$of", (table) => {
    expect(firstColumn(table)).toEqual([...(values[table.of] ?? [])].sort());
  });
  test("each list of values has a table", () => {
    expect(
      ofKind("values")
        .map(({ of }) => of)
        .sort(),
    ).toEqual(Object.keys(values).sort());
  });

  test.each([
    ["exec", "reason", wire.exitReasons],
    ["authentication", "scopes", wire.keyScopes],
  ] as const)("the row in %s.md of %s names each there is", (page, field, values) => {
    const text = readFileSync(new URL(`${page}.md`, folder), "utf8");
    const row = new RegExp(`^\\| \`${field}\` \\|.*`, "m").exec(text)?.[0];
    expect(names(row).slice(1).sort()).toEqual([...values].sort());
  });

  test("messages of a WebSocket's client", () => {
    const [table] = ofKind("messages");
    const samples = (table?.rows ?? []).map(([cell]) => JSON.parse(names(cell)[0] ?? ""));
    const variants = wire.WsClientMessage.anyOf;
    expect(samples.map(({ type }) => type)).toEqual(variants.map(({ properties }) => properties.type.const));
    for (const [index, sample] of samples.entries())
      expect(Object.keys(variants[index]?.properties ?? {})).toEqual(
        expect.arrayContaining(Object.keys(sample)),
      );
  });

  test("types of events and their data", () => {
    const [table] = ofKind("events");
    const told = (table?.rows ?? []).map(
      ([type, , data]) => [names(type)[0] ?? "", names(data).sort()] as const,
    );
    const emitted = Object.entries(wire.eventData).map(([type, data]) => [type, [...data].sort()] as const);
    expect(Object.fromEntries(told)).toEqual(Object.fromEntries(emitted));
    expect(Object.keys(wire.eventData).sort()).toEqual([...wire.eventTypes].sort());
  });

  test("each schema of a body has its table", () => {
    const held = new Set(ofKind("fields").flatMap(({ of }) => of.split(/, | - /)));
    // In words, or as JSON, on the page of their route.
    const elsewhere = [
      "ChmodFileRequest",
      "ErrorBody",
      "ExecTimeout",
      "MoveFileRequest",
      "ProviderTestResult",
      "UnpackResult",
      "WatchEvent",
      "WsClientMessage",
      "WsServerMessage",
    ];
    const missing = schemas
      .map(([name]) => name)
      .filter((name) => !held.has(name) && !elsewhere.includes(name));
    expect(missing).toEqual([]);
  });
});

test("docs/agent-protocol.md has every feature of the agent", () => {
  const root = new URL("../../../", import.meta.url);
  // Of every agent, and of one that is the first process of a machine.
  const lists = ["input", "machine"].map((name) => {
    const agent = readFileSync(new URL(`agent/alcove-agent/src/${name}.rs`, root), "utf8");
    return /FEATURES[^=]*=\s*\[([^\]]*)\]/.exec(agent)?.[1] ?? "";
  });
  const features = lists.flatMap((list) => [...list.matchAll(/"(\w+)"/g)].map(([, name = ""]) => name));
  const page = readFileSync(new URL("docs/agent-protocol.md", root), "utf8");
  const told = /^Features so far: [\s\S]*?\n\n/m.exec(page)?.[0] ?? "";
  expect(features).toEqual(expect.arrayContaining(["exec", "renew"]));
  expect(features.filter((name) => !told.includes(`\`${name}\``))).toEqual([]);
});

/** Where a section of the configuration is known by another name than its own: files that are given it as settings. */
const settingsOf: Readonly<Record<string, RegExp>> = {
  auth: /^core\/keys\//,
  rate_limit: /^core\/rate-limits\//,
  preview: /^core\/previews\//,
  logging: /^platform\/logger\.ts$/,
  "providers.firecracker": /^providers\/firecracker\//,
  "providers.native": /^providers\/(?:native|launcher)\//,
  "providers.docker": /^providers\/(?:docker|launcher)\//,
  "providers.proot": /^providers\/proot\//,
  "providers.mock": /^providers\/mock\//,
  "providers.e2b": /^providers\/e2b\//,
  "providers.custom": /^providers\/custom\//,
  telemetry: /^telemetry\//,
};
/** A choice of one: the schema refuses any other value, and nothing else has to know. */
const ofOneValue = ["database.driver"];

const source = new URL("../src/", import.meta.url);
const code = readdirSync(source, { recursive: true, encoding: "utf8" })
  .filter((file) => file.endsWith(".ts") && !/\.test\.ts$|(?:^|\/)testing\//.test(file))
  .map((file) => ({ file, text: readFileSync(new URL(file, source), "utf8") }));
const camelCase = (text: string) => text.replaceAll(/_(\w)/g, (_all, letter: string) => letter.toUpperCase());

/** Whether code reads a key of its section, or of what it was given of that. */
function isRead({ key, kind }: Pick<(typeof configKeys)[number], "key" | "kind">): boolean {
  const parts = key.split(".");
  const section = parts.slice(0, -1).join(".");
  const unit = kind === "duration" ? "Ms" : kind === "bytes" ? "Bytes" : "";
  // The loader puts what the file holds in place of the key without the ending.
  const name = camelCase((parts.at(-1) ?? "").replace(/_file$|_bytes$/, "")) + unit;
  const owner =
    parts.length < 2
      ? "config"
      : section.startsWith("providers.")
        ? "providers\\[\\w+\\]"
        : camelCase(section);
  const ofSection = [
    new RegExp(`\\b${owner}\\??\\.${name}\\b`),
    new RegExp(`\\{[^{}]*\\b${name}\\b[^{}]*\\} = [\\w.]*\\b${owner}\\b`),
  ];
  const given = section === "logging" ? "options" : "(?:config|configured|settings)";
  const ofSettings = new RegExp(
    `\\b${given}\\.${name}\\b|\\{[^{}]*\\b${name}\\b[^{}]*\\} = [\\w.#]*\\b${given}\\b`,
  );
  return code.some(({ file, text }) => {
    if (settingsOf[section]?.test(file) === true && ofSettings.test(text)) return true;
    return !/^config\/(?!load\.ts)/.test(file) && ofSection.some((read) => read.test(text));
  });
}

test("each key of the configuration is read by something", () => {
  const unread = configKeys.filter((key) => !ofOneValue.includes(key.key) && !isRead(key));
  expect(unread.map(({ key }) => key)).toEqual([]);
});

test("pages name no key of the configuration that there is not", () => {
  const root = new URL("../../../", import.meta.url);
  const markdown = readdirSync(new URL("docs/", root), { recursive: true, encoding: "utf8" })
    // That page names operations of the agent, which begin as keys do.
    .filter((name) => name.endsWith(".md") && name !== "agent-protocol.md")
    .map((name) => `docs/${name}`);
  const sections = new Set(
    configKeys.map(({ key }) => key.replace(/\.?\w+$/, "")).filter((key) => key !== ""),
  );
  const known = new Set<string>([...configKeys.map(({ key }) => key), ...sections, ...wire.eventTypes]);
  // What else is spelled so: a method of the SDK, a file, an attribute of traces, operations of the agent.
  for (const other of ["files.watch", "preview.key", "server.address", "exec.start", "exec.grace"])
    known.add(other);
  const unknown = ["README.md", "CONTRIBUTING.md", ...markdown].flatMap((name) =>
    [...readFileSync(new URL(name, root), "utf8").matchAll(/`(([a-z0-9_]+)(?:\.[a-z0-9_]+)+)(?=[`:=])/g)]
      .filter(([, key = "", section = ""]) => sections.has(section) && !known.has(key))
      .map(([, key]) => `${name}: ${key}`),
  );
  expect(unknown).toEqual([]);
});

test.each(["server.name", "exec.user", "providers.native.image", "rate_limit.name"])(
  "%s, which is no key, is read by nothing, though the word stands in the code",
  (key) => expect(isRead({ key, kind: "text" })).toBe(false),
);

test("each type of event is emitted by something", () => {
  // In core a type stands where its event is made, in unions of types, and as `event:` in lines of the log.
  const emitted = (type: string) =>
    code.some(
      ({ file, text }) =>
        file.startsWith("core/") &&
        new RegExp(`(?<!event: |\\| )"${RegExp.escape(type)}"(?! \\|)`).test(text),
    );
  expect(wire.eventTypes.filter((type) => !emitted(type))).toEqual([]);
});

describe("docs/operations/logs.md", () => {
  const page = readFileSync(new URL("../../../docs/operations/logs.md", import.meta.url), "utf8");
  const [lines = "", fields = ""] = page.split("## Fields");
  const firstCells = (section: string) =>
    [...section.matchAll(/^\| (`.+?`) \|/gm)].flatMap(([, cell = ""]) =>
      [...cell.matchAll(/`([\w.]+)`/g)].map(([, name = ""]) => name),
    );
  /** Those of level `debug`, and of the simulation. */
  const untold = ["image.progress", "traces.sdk", "mock.worker_terminated"];

  test("has a row for each line with an event, and for no other", () => {
    const written = code.flatMap(({ text }) =>
      [...text.matchAll(/\bevent: "([a-z_]+\.[a-z_]+)"/g)].map(([, event = ""]) => event),
    );
    const documented = firstCells(lines);
    expect(written.filter((event) => !documented.includes(event) && !untold.includes(event))).toEqual([]);
    expect(documented.filter((event) => !code.some(({ text }) => text.includes(`"${event}"`)))).toEqual([]);
  });

  test("tells of no field that is never written", () => {
    const isWritten = (field: string) => {
      const assigned = new RegExp(`\\b${field}(?::|,| \\})`);
      return code.some(({ text }) => assigned.test(text));
    };
    expect(firstCells(fields).filter((field) => !isWritten(field))).toEqual([]);
  });
});
