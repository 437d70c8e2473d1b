import type { Template } from "@alcove/wire";
import { expect, test } from "vitest";
import { commandsOfTests } from "./testing/commands.ts";

const commands = commandsOfTests();
const { run } = commands;

const template: Template = {
  name: "python",
  image: "debian:12",
  memory_mb: 256,
  created_at: "2026-11-22T00:00:00.000Z",
  updated_at: "2026-11-22T00:00:00.000Z",
};

test("template save replaces, and makes what is not there", async () => {
  commands.service.answer = ({ method }) =>
    method === "PUT"
      ? { status: 404, json: { code: "not_found", message: "none" } }
      : { status: 201, json: template };
  const { code, stdout } = await run(
    ...["template", "save", "python", "--image", "debian:12", "--memory", "256", "--env", "A=1"],
  );
  expect(code).toBe(0);
  const fields = { image: "debian:12", memory_mb: 256, env: { A: "1" } };
  expect(commands.service.requests.map(({ method, path, body }) => [method, path, JSON.parse(body)])).toEqual(
    [
      ["PUT", "/templates/python", fields],
      ["POST", "/templates", { name: "python", ...fields }],
    ],
  );
  expect(stdout).toMatch(/python\s+debian:12\s+default\s+256 MB\s+default\s+default\s+-/);
});

test("template save without an image and an unknown network end with 2", async () => {
  expect((await run("template", "save", "python")).code).toBe(2);
  expect((await run("template", "save", "p", "--image", "x", "--network", "all")).code).toBe(2);
  expect(commands.service.requests).toEqual([]);
});

test("template show prints JSON, rm the name", async () => {
  commands.service.answer = ({ method }) => ({ json: method === "GET" ? template : { status: "deleted" } });
  expect(JSON.parse((await run("template", "show", "python")).stdout)).toEqual(template);
  expect((await run("template", "rm", "python")).stdout).toBe("python\n");
});
