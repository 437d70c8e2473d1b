import { expect, test } from "vitest";
import { accessOf } from "./access.ts";

test("what a path names decides how far the key of an owner reaches, not the row alone", () => {
  const at = (url: string, operationId: string) => () => accessOf({ url, operationId });
  expect(at("/api/v1/sandboxes/:id", "getSandbox")()).toEqual({ scope: "read", bound: "sandbox" });
  for (const operationId of ["listSandboxes", "listProviders", "getQuota", "getMetrics"])
    expect(at("/api/v1/sandboxes/:id/wave", operationId)).toThrow('its path asks for "sandbox"');
  expect(at("/api/v1/quotas/:ownerID/wave", "listProviders")).toThrow('its path asks for "owner" or "all"');
  expect(at("/api/v1/admin/sandboxes/:id/wave", "adminListSandboxes")).toThrow("asks for");
  expect(at("/api/v1/waves", "wave")).toThrow("has no row");
});
