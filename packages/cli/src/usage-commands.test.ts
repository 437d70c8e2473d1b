import { expect, test } from "vitest";
import { type TopRow, topTable } from "./commands/top.ts";
import { commandsOfTests } from "./testing/commands.ts";
import type { FakeAnswer } from "./testing/fake-service.ts";

const at = commandsOfTests();
const sandbox = (id: string, more = {}) => ({
  id,
  state: "running",
  provider: "native",
  image: "host",
  memory_mb: 512,
  vcpus: 1,
  created_at: "2026-11-22T12:00:00Z",
  expires_at: "2026-11-22T13:00:00Z",
  metadata: {},
  ...more,
});
const stats = {
  memory_bytes: 3 * 2 ** 20,
  memory_limit_bytes: 2 ** 29,
  disk_bytes: 2048,
  pids: 4,
  commands: 2,
};

test("stats tells what is used of what; a figure that is not known is a dash", async () => {
  at.service.answer = () => ({ json: { ...stats, cpu_usage_ms: 1_500 } });
  const { stdout } = await at.run("stats", "sb-1");
  expect(stdout).toContain("processor time  1.5 s\n");
  expect(stdout).toContain("memory          3.0 MiB of 512.0 MiB\n");
  expect(stdout).toContain("disk            2.0 KiB\n");
  expect(at.service.requests[0]?.path).toBe("/sandboxes/sb-1/stats");
  at.service.answer = () => ({ json: { commands: 0 } });
  expect((await at.run("stats", "sb-1")).stdout).toMatch(/memory +-\n/);
});

test("top tells the processor's share between two looks, most first, and leaves out what cannot tell", async () => {
  let looks = 0;
  at.service.answer = ({ path }): FakeAnswer => {
    if (path !== "/sandboxes/stats") return { status: 404, json: { code: "not_found", message: path } };
    looks++;
    const busy = sandbox("sb-busy", { owner_id: "acme", name: "web" });
    return {
      json: [
        { sandbox: sandbox("sb-idle"), stats: { ...stats, cpu_usage_ms: 0 } },
        { sandbox: busy, stats: { ...stats, cpu_usage_ms: looks > 1 ? 100_000 : 0 } },
        { sandbox: sandbox("sb-gone") },
      ],
    };
  };
  const { code, stdout } = await at.run("top", "--interval", "500ms");
  expect([code, looks]).toEqual([0, 2]);
  const [, first = "", second = "", third = ""] = stdout.split("\n");
  expect(first).toMatch(/^sb-busy +web +acme +running +\d{4,}\.\d % +3\.0 MiB +2\.0 KiB +4 +2 /);
  expect(second).toMatch(/^sb-idle .* 0\.0 % /);
  expect(third).toMatch(/^sb-gone .* - +- /);
  const json = JSON.parse((await at.run("top", "--json", "--interval", "500ms")).stdout);
  expect(json.map(({ cpu_percent }: { cpu_percent?: number }) => typeof cpu_percent)).toEqual([
    "number",
    "number",
    "undefined",
  ]);
  expect((await at.run("top", "--interval", "1")).code).toBe(2);
  const none = await at.run("top", "--limit", "0");
  expect([none.code, none.stderr]).toEqual([2, expect.stringContaining("--limit 0: expected 1 or more")]);
});

test("top fails like every command when the service does", async () => {
  at.service.answer = () => ({ status: 401, json: { code: "unauthorized", message: "a key is needed" } });
  expect(await at.run("top", "--once")).toMatchObject({ code: 4, stdout: "" });
});

test("top sorts by what it is asked to", () => {
  const row = (id: string, figures: Partial<typeof stats>, cpuPercent: number) =>
    ({ sandbox: sandbox(id), stats: { ...stats, ...figures }, cpuPercent }) as unknown as TopRow;
  const rows = [
    row("a", { memory_bytes: 1, disk_bytes: 9, commands: 5 }, 2),
    row("b", { memory_bytes: 2, disk_bytes: 8, commands: 4 }, 1),
  ];
  const first = (sort: "cpu" | "memory" | "disk" | "commands") =>
    topTable(rows, { nowMs: 0, sort }).split("\n")[1]?.[0];
  expect([first("cpu"), first("memory"), first("disk"), first("commands")]).toEqual(["a", "b", "a", "a"]);
});

test("ls --stats asks for all at once and adds columns", async () => {
  const listed = sandbox("sb-1", { owner_id: "acme" });
  at.service.answer = ({ path }) => ({
    json: path === "/sandboxes/stats" ? [{ sandbox: listed, stats }] : [listed],
  });
  expect((await at.run("ls")).stdout).not.toContain("DISK");
  expect(at.service.requests).toHaveLength(1);
  const { stdout } = await at.run("ls", "--stats");
  expect(stdout).toMatch(/ENDS IN +IN USE +DISK +COMMANDS +OWNER\n/);
  expect(stdout).toMatch(/ 3\.0 MiB +2\.0 KiB +2 +acme\n/);
});
