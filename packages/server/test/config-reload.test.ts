import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import path from "node:path";
import { pino } from "pino";
import { expect, test } from "vitest";
import { serve } from "../src/main.ts";
import { TestClient } from "./support/http.ts";
import { mockConfig } from "./support/mock-config.ts";

test("a configuration that cannot be read again is told by figures until one is taken up, and changes nothing meanwhile", async () => {
  await using stack = new AsyncDisposableStack();
  const home = await mkdtemp(path.join(tmpdir(), "alcove-reload-"));
  stack.defer(() => rm(home, { recursive: true, force: true }));
  const config = (maxSandboxes: string) => mockConfig(home, { ALCOVE_DEFAULTS_MAX_SANDBOXES: maxSandboxes });
  // Of its own: its level is among what is taken over.
  const logger = pino({ level: "warn" }, { write: () => undefined });
  const service = await serve({ config: config("3"), logger });
  stack.defer(() => service.close());
  const client = new TestClient(service.url);
  const told = async () => {
    const { json } = await client.call("GET", "/api/v1/diagnostics");
    const { text } = await client.call("GET", "/api/v1/metrics/prometheus");
    const successful = /^service_config_reload_successful (.*)$/m.exec(text)?.[1];
    return [json.limits.max_sandboxes, typeof json.process.reload_failed, successful];
  };
  expect(await told()).toEqual([3, "undefined", "1"]);
  await service.reload(async () => config("many"));
  expect(await told()).toEqual([3, "string", "0"]);
  await service.reload(async () => config("4"));
  expect(await told()).toEqual([4, "undefined", "1"]);
});
