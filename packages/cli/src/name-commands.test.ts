import type { Sandbox } from "@alcove/wire";
import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { parsePlace } from "./commands/cp.ts";
import { FakeService } from "./testing/fake-service.ts";
import { runCli } from "./testing/run-cli.ts";

// Each command is a process of its own, on a machine that may be busy.
vi.setConfig({ testTimeout: 60_000 });

let service: FakeService;
let sandboxes: Partial<Sandbox>[];
beforeEach(async () => {
  service = await FakeService.start();
  const at = "2026-11-22T00:00:00.000Z";
  const made = { state: "running", provider: "mock", image: "host", created_at: at, expires_at: at } as const;
  sandboxes = [{ id: "sb-aaaaaaaaaaaa", name: "web", owner_id: "ada", ...made }];
  service.answer = ({ method, path }) => {
    if (path.startsWith("/sandboxes/acquire")) return { status: 201, json: sandboxes[0] };
    if (path.endsWith("/logs")) return { json: ["booted"] };
    return { json: method === "GET" ? sandboxes : { ...sandboxes[0], status: "destroyed" } };
  };
});
afterEach(() => service[Symbol.asyncDispose]());
const run = (...args: string[]) => runCli(args, { url: service.url });
const paths = () => service.requests.map(({ method, path }) => `${method} ${path.replace(/\?.*/, "")}`);

test("acquire and spawn --name send the name, and print the id", async () => {
  const acquired = await run("acquire", "web", "--ttl", "5m", "--owner", "ada");
  expect([acquired.code, acquired.stdout]).toEqual([0, "sb-aaaaaaaaaaaa\n"]);
  expect((await run("spawn", "--name", "web", "-q")).code).toBe(0);
  expect(service.requests.map(({ path, body }) => [path, JSON.parse(body)])).toEqual([
    ["/sandboxes/acquire", { name: "web", ttl: "5m", owner_id: "ada" }],
    ["/sandboxes", { name: "web" }],
  ]);
});

test("commands take a name in place of an id", async () => {
  for (const args of [
    ["logs", "web"],
    ["extend", "web", "5m"],
    ["kill", "web"],
  ])
    expect([args, (await run(...args)).code]).toEqual([args, 0]);
  const id = "/sandboxes/sb-aaaaaaaaaaaa";
  expect(paths()).toEqual([
    ...["GET /sandboxes", `GET ${id}/logs`],
    ...["GET /sandboxes", `POST ${id}/extend`],
    ...["GET /sandboxes", `DELETE ${id}`],
  ]);
});

test("ls shows the names where there are some", async () => {
  const [named] = sandboxes;
  sandboxes = [
    { ...named, memory_mb: 512, vcpus: 1, metadata: {} },
    { ...named, id: "sb-2", name: undefined, memory_mb: 512, vcpus: 1, metadata: {} },
  ] as Partial<Sandbox>[];
  const lines = (await run("ls")).stdout.split("\n");
  expect(lines[0]).toMatch(/ENDS IN +NAME +OWNER$/);
  expect(lines[1]).toMatch(/web +ada$/);
  expect(lines[2]).toMatch(/- +ada$/);
});

test("an id is not looked up", async () => {
  await run("kill", "sb-bbbbbbbbbbbb");
  expect(paths()).toEqual(["DELETE /sandboxes/sb-bbbbbbbbbbbb"]);
});

test("a name that nothing living has ends with 3, and of several owners' with 2", async () => {
  sandboxes = [{ ...sandboxes[0], state: "error" }];
  const nothing = await run("kill", "web");
  expect([nothing.code, nothing.stderr]).toEqual([3, expect.stringContaining('has the name "web"')]);
  sandboxes = [
    { ...sandboxes[0], state: "running" },
    { ...sandboxes[0], id: "sb-cccccccccccc", owner_id: "bob", state: "running" },
  ];
  const several = await run("logs", "web");
  expect(several.code).toBe(2);
  expect(several.stderr).toMatch(/sb-aaaaaaaaaaaa \(owner "ada"\), sb-cccccccccccc \(owner "bob"\)/);
});

test.each([
  ["web:/b", { kind: "sandbox", id: "web", path: "/b" }],
  ["sb-a:/b", { kind: "sandbox", id: "sb-a", path: "/b" }],
  ["web:b", { kind: "local", path: "web:b" }],
  ["./web:/b", { kind: "local", path: "./web:/b" }],
  ["Web:/b", { kind: "local", path: "Web:/b" }],
])("%s is a place", (text, place) => expect(parsePlace(text)).toEqual(place));
