import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { FakeService } from "./testing/fake-service.ts";
import { runCli } from "./testing/run-cli.ts";

// Each command is a process of its own, on a machine that may be busy.
vi.setConfig({ testTimeout: 60_000 });

let service: FakeService;
beforeEach(async () => {
  service = await FakeService.start();
});
afterEach(() => service[Symbol.asyncDispose]());

test("pool status tells what is held and may be, or that there is none", async () => {
  const status = { enabled: true, vms: 2, max_vms: 10, total_users: 7, max_users_per_vm: 5 };
  service.answer = () => ({ json: status });
  const told = await runCli(["pool", "status"], { url: service.url });
  expect(told.stdout).toMatch(/VMs\s+2\s+10\nusers\s+7\s+50\n/);
  expect(service.requests[0]?.path).toBe("/pool/status");
  const whole = await runCli(["pool", "status", "--json"], { url: service.url });
  expect(JSON.parse(whole.stdout)).toEqual(status);
  service.answer = () => ({ json: { enabled: false } });
  expect((await runCli(["pool", "status"], { url: service.url })).stdout).toBe(
    "pool mode is off (pool.enabled)\n",
  );
});
