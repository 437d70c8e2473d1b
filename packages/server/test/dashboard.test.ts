import { readFileSync } from "node:fs";
import { expect, test } from "vitest";

/** The dashboard without a Grafana: what an import does not say and a panel then shows as "No data" or not at all. */
interface Source {
  type: string;
  uid: string;
}
interface Panel {
  id: number;
  type: string;
  title: string;
  datasource: Source;
  gridPos: { x: number; y: number; w: number; h: number };
  targets: { refId: string; expr: string; datasource?: Source }[];
  fieldConfig?: { defaults?: { unit?: string } };
}
const dashboard: {
  id?: unknown;
  uid: string;
  title: string;
  schemaVersion: number;
  templating: { list: { name: string; type: string; query: unknown; datasource?: Source }[] };
  panels: Panel[];
} = JSON.parse(readFileSync(new URL("../../../deploy/grafana/alcove.json", import.meta.url), "utf8"));
const { panels, templating } = dashboard;
const variables = new Map(templating.list.map((variable) => [variable.name, variable]));
/** The variable, as Grafana writes it. */
const chosen = "$" + "{datasource}";
const units = ["short", "bytes", "percentunit", "ms", "s", "ops", "reqps"];
const duplicates = <T>(items: T[]) => items.filter((item, index) => items.indexOf(item) !== index);

test("it is one that can be imported anywhere: no number of its own, no data source by name", () => {
  expect(dashboard).toMatchObject({ uid: expect.stringMatching(/^[a-zA-Z0-9_-]{1,40}$/), title: "Alcove" });
  expect(dashboard.id ?? null).toBeNull();
  expect(dashboard.schemaVersion).toBeGreaterThanOrEqual(36);
  const sources = [
    ...panels.flatMap(({ datasource, targets }) => [
      datasource,
      ...targets.map((target) => target.datasource),
    ]),
    ...templating.list.filter(({ type }) => type === "query").map(({ datasource }) => datasource),
  ].filter((source) => source !== undefined);
  expect(sources.length).toBeGreaterThan(panels.length);
  for (const source of sources) expect([source.type, source.uid]).toEqual(["prometheus", chosen]);
  expect(variables.get("datasource")).toMatchObject({ type: "datasource", query: "prometheus" });
});

test("its panels have ids, titles and queries of their own, of kinds that every Grafana has", () => {
  expect(duplicates(panels.map(({ id }) => id))).toEqual([]);
  expect(duplicates(panels.map(({ title }) => title))).toEqual([]);
  for (const { title, type, targets, fieldConfig } of panels) {
    expect([undefined, ...units], title).toContain(fieldConfig?.defaults?.unit);
    expect(["stat", "timeseries"], title).toContain(type);
    expect(targets.length, title).toBeGreaterThan(0);
    expect(duplicates(targets.map(({ refId }) => refId)), title).toEqual([]);
    for (const { refId } of targets) expect(refId, title).toMatch(/^[A-Z]$/);
  }
});

test("every variable in a query is one of the dashboard or of Grafana, and each of the dashboard is used", () => {
  const used = panels.flatMap(({ targets }) =>
    targets.flatMap(({ expr }) => [...expr.matchAll(/\$\{?(\w+)/g)].map(([, name = ""]) => name)),
  );
  const known = [...variables.keys(), "__rate_interval"];
  expect(used.filter((name) => !known.includes(name))).toEqual([]);
  expect([...variables.keys()].filter((name) => name !== "datasource" && !used.includes(name))).toEqual([]);
});

test("panels lie within the 24 columns and not over each other", () => {
  const cells = panels.flatMap(({ gridPos: { x, y, w, h } }) =>
    Array.from({ length: w * h }, (_, cell) => `${x + (cell % w)},${y + Math.floor(cell / w)}`),
  );
  expect(duplicates(cells)).toEqual([]);
  for (const { title, gridPos } of panels) expect(gridPos.x + gridPos.w, title).toBeLessThanOrEqual(24);
});
