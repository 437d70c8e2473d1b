import { expect, it, vi } from "vitest";
import { RouteTable } from "./route-table.ts";

function tableOf(routes: readonly { method: string; url: string }[]): RouteTable {
  const table = new RouteTable();
  const addHook = (_name: string, hook: (route: object) => void) => {
    for (const route of routes) hook(route);
  };
  table.watch({ addHook } as unknown as Parameters<RouteTable["watch"]>[0]);
  return table;
}

it("a path of thousands of parts is looked at no further than the longest route goes", () => {
  const routes = Array.from({ length: 100 }, (_, index) => ({ method: "GET", url: `/api/v1/${index}/:id` }));
  const table = tableOf([...routes, { method: "GET", url: "/api/v1/ports/*" }]);
  const split = vi.spyOn(String.prototype, "split");
  try {
    expect(table.refusal("GET", "/".repeat(15_000)).error.code).toBe("not_found");
    const parts = split.mock.results.reduce((sum, { value }) => sum + (value as string[]).length, 0);
    expect(parts).toBeLessThan(2_000);
  } finally {
    split.mockRestore();
  }
});

it("a path that is longer than a route by one part is none of it", () => {
  const table = tableOf([{ method: "GET", url: "/a/:id" }]);
  expect(table.refusal("PUT", "/a/x")).toMatchObject({ error: { code: "method_not_allowed" }, allow: "GET" });
  for (const path of ["/a/x/", "/a/x/y", "/a/x/y/z", "/a/"])
    expect(table.refusal("PUT", path).error.code).toBe("not_found");
});
