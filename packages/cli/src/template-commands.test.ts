import type { Template } from "@alcove/wire";
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
const run = (...args: string[]) => runCli(args, { url: service.url });

const template: Template = {
  name: "python",
  image: "debian:12",
  memory_mb: 256,
  created_at: "2026-11-22T00:00:00.000Z",
  updated_at: "2026-11-22T00:00:00.000Z",
};

test("template save replaces, and makes what is not there", async () => {
  service.answer = ({ method }) =>
    method === "PUT"
      ? { status: 404, json: { code: "not_found", message: "none" } }
      : { status: 201, json: template };
  const { code, stdout } = await run(
    ...["template", "save", "python", "--image", "debian:12", "--memory", "256", "--env", "A=1"],
  );
  expect(code).toBe(0);
  const fields = { image: "debian:12", memory_mb: 256, env: { A: "1" } };
  expect(service.requests.map(({ method, path, body }) => [method, path, JSON.parse(body)])).toEqual([
    ["PUT", "/templates/python", fields],
    ["POST", "/templates", { name: "python", ...fields }],
  ]);
  expect(stdout).toMatch(/python\s+debian:12\s+default\s+256 MB\s+default\s+default\s+-/);
});

test("template save without an image and an unknown network end with 2", async () => {
  expect((await run("template", "save", "python")).code).toBe(2);
  expect((await run("template", "save", "p", "--image", "x", "--network", "all")).code).toBe(2);
  expect(service.requests).toEqual([]);
});

test("template show prints JSON, rm the name", async () => {
  service.answer = ({ method }) => ({ json: method === "GET" ? template : { status: "deleted" } });
  expect(JSON.parse((await run("template", "show", "python")).stdout)).toEqual(template);
  expect((await run("template", "rm", "python")).stdout).toBe("python\n");
});
