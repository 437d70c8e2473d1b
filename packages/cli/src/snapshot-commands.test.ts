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

test("snapshot ls lists what there is", async () => {
  const made = {
    image: "python:3",
    kernel: "vmlinux-6.1",
    size_bytes: 3 * 1_048_576,
    created_at: "2030-01-02T03:04:05.000Z",
    provider: "firecracker",
  };
  service.answer = () => ({ json: [made] });
  const told = await runCli(["snapshot", "ls"], { url: service.url });
  expect(told.stdout).toMatch(
    /^IMAGE +KERNEL +PROVIDER +MB +CREATED\npython:3 +vmlinux-6\.1 +firecracker +3 +2030-01-02T03:04:05\.000Z\n$/,
  );
  expect(service.requests[0]?.path).toBe("/snapshots");
  const whole = await runCli(["snapshot", "ls", "--json"], { url: service.url });
  expect(JSON.parse(whole.stdout)).toEqual([made]);
});
