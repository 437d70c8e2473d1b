import { type ChildProcess, spawn } from "node:child_process";
import { once } from "node:events";
import { cp, mkdir, mkdtemp, readdir, readFile, rm, writeFile } from "node:fs/promises";
import { createServer } from "node:net";
import { tmpdir } from "node:os";
import path from "node:path";
import { fileURLToPath } from "node:url";
import { expect, test, vi } from "vitest";
import { noteBackup } from "../src/platform/last-backup.ts";
import { readExposition } from "./support/exposition.ts";
import { TestClient } from "./support/http.ts";
import { runProgram } from "./support/programs.ts";
import { mockProvider } from "./support/providers.ts";
import { describeWith } from "./support/requirements.ts";
import { startTestServer, type TestServer } from "./support/test-server.ts";

const deploy = fileURLToPath(new URL("../../../deploy/", import.meta.url));
const scrapePath = "/api/v1/metrics/prometheus";

/** Every expression of the rules and the dashboard, as Prometheus would evaluate it. */
async function expressions(): Promise<{ where: string; expr: string }[]> {
  const rules = await readFile(path.join(deploy, "prometheus/alcove-rules.yaml"), "utf8");
  const ofRules = [...rules.matchAll(/^ {6}- alert: (\w+)\n {8}expr: (?:\|\n((?: {10}.*\n)+)|(.*)\n)/gm)].map(
    ([, where = "", block, line]) => ({ where, expr: (block ?? line ?? "").trim() }),
  );
  const dashboard = JSON.parse(await readFile(path.join(deploy, "grafana/alcove.json"), "utf8"));
  const ofPanels = dashboard.panels.flatMap(
    ({ title, targets }: { title: string; targets: { expr: string }[] }) =>
      targets.map(({ expr }) => ({
        where: `panel "${title}"`,
        expr: expr.replaceAll("$__rate_interval", "1m").replaceAll("$instance", ".+"),
      })),
  );
  return [...ofRules, ...ofPanels];
}

/** Names of metrics, and label values that they are asked for with. */
function metricsOf(expr: string): { name: string; selector: string }[] {
  return [...expr.matchAll(/\b(service_\w+)(?:\{([^}]*)\})?/g)].map(([, name = "", selector = ""]) => ({
    name,
    selector,
  }));
}

async function scrape(server: TestServer): Promise<Map<string, number>> {
  const { status, text } = await new TestClient(server.url).call("GET", scrapePath);
  expect(status).toBe(200);
  return readExposition(text);
}

test("the alert rules and the dashboard ask for metrics that there are, with labels that these have", async () => {
  await using server = await startTestServer({ provider: mockProvider });
  await new TestClient(server.url).spawn();
  Object.defineProperty(server.provider, "guards", { value: [{ guard: "disk", helpless: false }] });
  await vi.waitUntil(async () => [...(await scrape(server)).keys()].some((key) => key.includes("disk_free")));
  const samples = [...(await scrape(server)).keys()];
  const asked = (await expressions()).flatMap(({ where, expr }) =>
    metricsOf(expr).map((metric) => ({ where, ...metric })),
  );
  expect(asked.length).toBeGreaterThan(40);
  for (const { where, name, selector } of asked) {
    const ofName = samples.filter((key) => key.replace(/\{.*/, "") === name);
    expect(ofName, `${where} asks for ${name}`).not.toEqual([]);
    for (const [, label = "", how = "", value = ""] of selector.matchAll(/(\w+)(=~|!~|=|!=)"([^"]*)"/g)) {
      if (label === "instance") continue;
      const matches = ofName.some((key) => {
        const given = new RegExp(`[{,]${label}="([^"]*)"`).exec(key)?.[1];
        return given !== undefined && (how.startsWith("!") || new RegExp(`^(?:${value})$`).test(given));
      });
      expect(matches, `${where} asks ${name} for ${label}${how}"${value}"`).toBe(true);
    }
  }
});

test("docs/api/metrics.md names every metric of a scrape, and none that is not there", async () => {
  await using server = await startTestServer({ provider: mockProvider });
  await vi.waitUntil(async () => [...(await scrape(server)).keys()].some((key) => key.includes("disk_free")));
  const page = await readFile(new URL("../../../docs/api/metrics.md", import.meta.url), "utf8");
  const told = new Set(
    [...page.matchAll(/^\|((?: `service_\w+`,?)+)/gm)].flatMap(([, cell = ""]) =>
      [...cell.matchAll(/service_\w+/g)].map(([name]) => name),
    ),
  );
  const there = (await new TestClient(server.url).call("GET", scrapePath)).text.matchAll(/^# TYPE (\S+)/gm);
  expect([...told].sort()).toEqual([...there].map(([, name]) => name).sort());
});

test("every alert has its row on the operator's page", async () => {
  const page = await readFile(new URL("../../../docs/operations/operate.md", import.meta.url), "utf8");
  const rows = [...page.matchAll(/^\| `(Alcove\w+)` \|/gm)].map(([, name]) => name);
  const alerts = (await expressions()).map(({ where }) => where).filter((where) => /^Alcove/.test(where));
  expect(rows.sort()).toEqual(alerts.sort());
});

test("scrapes and diagnostics at ten a second are answered at once while 64 clients spawn", async () => {
  await using server = await startTestServer({ provider: mockProvider });
  const stopMs = performance.now() + 4_000;
  const client = new TestClient(server.url);
  const spawning = Array.from({ length: 64 }, async () => {
    let made = 0;
    while (performance.now() < stopMs) {
      const { status, json } = await client.call("POST", "/api/v1/sandboxes", {});
      expect([201, 429]).toContain(status);
      if (status === 201)
        made += (await client.call("DELETE", `/api/v1/sandboxes/${json.id}`)).status === 200 ? 1 : 0;
    }
    return made;
  });
  const tookMs: number[] = [];
  const asking = [scrapePath, "/api/v1/diagnostics"].map(async (at) => {
    while (performance.now() < stopMs) {
      const startedMs = performance.now();
      const { status, text } = await client.call("GET", at);
      expect(status).toBe(200);
      if (at === scrapePath) readExposition(text);
      tookMs.push(performance.now() - startedMs);
      await new Promise((resolve) => setTimeout(resolve, 100));
    }
  });
  const made = (await Promise.all(spawning)).reduce((all, one) => all + one, 0);
  await Promise.all(asking);
  expect(made).toBeGreaterThan(64);
  expect(tookMs.length).toBeGreaterThan(10);
  // Far above what it takes, far below what anybody would call standing still.
  expect(Math.max(...tookMs)).toBeLessThan(3_000);
});

await describeWith(["prometheus"], "with Prometheus itself", () => {
  test("promtool reads the scrape; what it finds fault with is only what the interface names", async () => {
    await using server = await startTestServer({ provider: mockProvider });
    await new TestClient(server.url).spawn();
    const { text } = await new TestClient(server.url).call("GET", scrapePath);
    const folder = await mkdtemp(path.join(tmpdir(), "alcove-scrape-"));
    await writeFile(path.join(folder, "scrape"), text);
    const told = await runProgram("sh", ["-c", "promtool check metrics <scrape"], { cwd: folder });
    await rm(folder, { recursive: true });
    // 3: it was read, and there are remarks.
    expect([0, 3], told.stderr).toContain(told.exitCode);
    const usual = /should not have "_total" suffix|use base unit "seconds" instead of "milliseconds"/;
    const remarks = `${told.stdout}${told.stderr}`
      .split("\n")
      .filter((line) => line !== "" && !usual.test(line));
    expect(remarks).toEqual([]);
  });

  test("promtool takes the rules and the configuration", async () => {
    const cwd = path.join(deploy, "prometheus");
    for (const args of [
      ["check", "config", "prometheus.yaml"],
      ["check", "rules", "alcove-rules.yaml"],
    ]) {
      const { exitCode, stderr } = await runProgram("promtool", args, { cwd });
      expect([exitCode, stderr], args.join(" ")).toEqual([0, expect.anything()]);
    }
  });

  test("it scrapes a service with a key, evaluates each rule and answers each panel", {
    timeout: 90_000,
  }, async () => {
    await using stack = new AsyncDisposableStack();
    const key = "a-key-for-prometheus";
    const folder = await mkdtemp(path.join(tmpdir(), "alcove-prometheus-"));
    stack.defer(() => rm(folder, { recursive: true, force: true }));
    const dataDir = path.join(folder, "service");
    await mkdir(dataDir);
    await noteBackup(dataDir, new Date());
    const server = stack.use(
      await startTestServer({ provider: mockProvider, env: { ALCOVE_AUTH_API_KEY: key }, dataDir }),
    );
    const client = new TestClient(server.url, { "x-api-key": key });
    await client.exec(await client.spawn(), { command: "true" });
    for (const name of await readdir(path.join(deploy, "prometheus")))
      await cp(path.join(deploy, "prometheus", name), path.join(folder, name));
    const file = path.join(folder, "prometheus.yaml");
    await writeFile(path.join(folder, "key"), key);
    const shipped = await readFile(file, "utf8");
    await writeFile(
      file,
      shipped
        .replace("127.0.0.1:7423", new URL(server.url).host)
        .replace(
          "# authorization: { credentials_file: /etc/prometheus/alcove-key }",
          "authorization: { credentials_file: key }",
        )
        .replaceAll("15s", "1s"),
    );
    const port = await freePort();
    const prometheus = spawn(
      "prometheus",
      [
        `--config.file=${file}`,
        `--storage.tsdb.path=${path.join(folder, "data")}`,
        `--web.listen-address=127.0.0.1:${port}`,
      ],
      { stdio: "ignore" },
    );
    stack.defer(() => ended(prometheus));
    const ask = async (at: string) => {
      const answer = await fetch(`http://127.0.0.1:${port}/api/v1/${at}`);
      return (await answer.json()) as { status: string; error?: string; data: { result: unknown[] } };
    };
    const query = (expr: string) => ask(`query?query=${encodeURIComponent(expr)}`);
    const up = async () =>
      (await query("count_over_time(service_ready[1m]) > 4").catch(() => undefined))?.data.result;
    await vi.waitUntil(async () => ((await up())?.length ?? 0) > 0, { timeout: 45_000, interval: 500 });
    const empty: string[] = [];
    for (const { where, expr } of await expressions()) {
      const { status, error, data } = await query(expr);
      expect([status, error], `${where}: ${expr}`).toEqual(["success", undefined]);
      if (where.startsWith("panel") && data.result.length === 0) empty.push(where);
    }
    // Nothing fails here.
    expect([...new Set(empty)]).toEqual(['panel "Failures of providers a second"']);
    const groups = (await ask("rules")) as unknown as {
      data: { groups: { rules: { name: string; health: string; state: string; lastError?: string }[] }[] };
    };
    const rules = groups.data.groups.flatMap((group) => group.rules);
    expect(rules.length).toBeGreaterThan(10);
    expect(rules.filter(({ health, state }) => health !== "ok" || state !== "inactive")).toEqual([]);
    await client.call("POST", "/api/v1/admin/workers/local/drain", undefined, { "x-api-key": key });
    const pending = async () => {
      const answer = (await ask("rules")) as unknown as typeof groups;
      const found = answer.data.groups.flatMap((group) => group.rules);
      return found.filter(({ state }) => state !== "inactive").map(({ name }) => name);
    };
    await vi.waitUntil(async () => (await pending()).includes("AlcoveDrained"), {
      timeout: 20_000,
      interval: 500,
    });
    expect(await pending()).toEqual(["AlcoveDrained"]);
  });
});

async function freePort(): Promise<number> {
  const server = createServer().listen(0, "127.0.0.1");
  await once(server, "listening");
  const address = server.address();
  server.close();
  return typeof address === "object" && address !== null ? address.port : 0;
}

async function ended(child: ChildProcess): Promise<void> {
  if (child.exitCode !== null || child.signalCode !== null) return;
  child.kill("SIGKILL");
  await once(child, "exit");
}
