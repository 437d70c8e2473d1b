import { readdir, readFile } from "node:fs/promises";
import { AlcoveClient } from "@alcove/sdk";
import { expect, test } from "vitest";
import { mockProvider } from "./support/providers.ts";
import { startTestServer } from "./support/test-server.ts";

/** Operations that openapi.json leaves out, each with the page that tells of it: OpenAPI has no paths of any length. */
const hidden: Readonly<Record<string, { page: string; path: string }>> = {
  requestPort: { page: "previews.md", path: "/sandboxes/{id}/ports/{port}/" },
};

test("what openapi.json leaves out is on this list, on a page, and in the SDK", async () => {
  await using server = await startTestServer({ provider: mockProvider });
  const found = server.app.routeTable.routes.filter(({ schema }) => schema?.hide === true);
  expect([...new Set(found.map(({ schema }) => schema?.operationId))].sort()).toEqual(
    Object.keys(hidden).sort(),
  );
  for (const [operation, { page, path }] of Object.entries(hidden)) {
    const url = found.find(({ schema }) => schema?.operationId === operation)?.url;
    expect(url?.replaceAll(/:(\w+)/g, "{$1}")).toBe(`/api/v1${path}*`);
    expect(await readFile(new URL(`../../../docs/api/${page}`, import.meta.url), "utf8")).toContain(path);
    expect(AlcoveClient.prototype).toHaveProperty(operation);
  }
});

test("every path of openapi.json stands on a page of docs/api", async () => {
  const folder = new URL("../../../docs/api/", import.meta.url);
  const pages = await Promise.all(
    (await readdir(folder)).map((page) => readFile(new URL(page, folder), "utf8")),
  );
  const told = pages.join("\n").replaceAll(/\{\w+\}/g, "{}");
  const document = JSON.parse(await readFile(new URL("../../../openapi.json", import.meta.url), "utf8"));
  const paths = Object.keys(document.paths).map((path) => path.replaceAll(/\{\w+\}/g, "{}"));
  expect(paths.length).toBeGreaterThan(50);
  // Pages write `…/stdin` for what is below something that they have named.
  const isTold = (path: string) => {
    const steps = path.replace(/^\/api\/v1\//, "").split("/");
    return steps.some((_, from) => told.includes(`${from === 0 ? "/" : "…/"}${steps.slice(from).join("/")}`));
  };
  expect(paths.filter((path) => !isTold(path))).toEqual([]);
});
