import { readFileSync } from "node:fs";
import { expect, test } from "vitest";
import { commandsOfTests } from "./testing/commands.ts";
import type { FakeAnswer, Recorded } from "./testing/fake-service.ts";

/** As a service tells it. */
const projectVersion = String(
  JSON.parse(readFileSync(new URL("../../../package.json", import.meta.url), "utf8")).version,
);
const at = commandsOfTests();
const provider = {
  name: "native",
  healthy: true,
  default: true,
  latency_ms: 3,
  last_checked: "x",
  capabilities: [],
};
const fine = () => ({
  live: { status: "alive", version: projectVersion, uptime: "1h0m0s" },
  ready: { status: 200, json: { status: "ready" } } as FakeAnswer,
  providers: [provider] as object[],
  diagnostics: {
    generated_at: new Date().toISOString(),
    process: { reload_failed: undefined as string | undefined },
    store: {
      healthy: true,
      latency_ms: 1,
      refusal: undefined as string | undefined,
      last_backup: new Date().toISOString() as string | undefined,
    },
    limits: { max_sandboxes: 100 },
    sandboxes: { active: 10, by_state: { unhealthy: 0 } },
    scheduler: { spawn_queue_depth: 0, spawn_queue_timeouts: 0 },
    operations: [{ operation: "exec", provider: "native", success_total: 1_000, failure_total: 4 }],
  },
});

function serve(state: ReturnType<typeof fine>): (request: Recorded) => FakeAnswer {
  return ({ path }) => {
    if (path === "/live") return { json: state.live };
    if (path === "/ready") return state.ready;
    return { json: path === "/providers" ? state.providers : state.diagnostics };
  };
}

async function found(change: (state: ReturnType<typeof fine>) => void) {
  const state = fine();
  change(state);
  at.service.answer = serve(state);
  const { code, stdout } = await at.run("doctor", "--running", "--json");
  const { ok, checks } = JSON.parse(stdout) as {
    ok: boolean;
    checks: { id: string; level: string; message: string }[];
  };
  expect(ok).toBe(code === 0);
  return [code, ...checks.filter(({ level }) => level !== "ok").map(({ id, level }) => `${level} ${id}`)];
}

test("doctor --running finds nothing wrong with a service that is well", async () => {
  at.service.answer = serve(fine());
  const { code, stdout } = await at.run("doctor", "--running");
  expect([code, stdout]).toEqual([0, expect.stringContaining("ok    it takes spawns\n")]);
  expect(stdout).not.toMatch(/^ {2}(warn|fail)/m);
});

test("doctor --running tells what sandboxes do without, and that they are simulated, each with the way out", async () => {
  const noGroups =
    "limits are rlimits (no cgroups; run the service as root, or under systemd with Delegate=yes)";
  const standsIn = "it is the default because nothing that runs programs worked when the service started";
  const state = fine();
  state.providers = [{ ...provider, notes: [noGroups] }];
  at.service.answer = serve(state);
  const weak = await at.run("doctor", "--running");
  expect([weak.code, weak.stdout]).toEqual([
    0,
    expect.stringMatching(/ok {4}provider native works .*\n {10}note: limits are rlimits .*Delegate=yes\)\n/),
  ]);
  state.providers = [{ ...provider, name: "mock", notes: [standsIn, "commands are simulated"] }];
  const simulated = await at.run("doctor", "--running");
  expect([simulated.code, simulated.stdout]).toEqual([
    0,
    expect.stringMatching(
      /warn {2}provider mock works .*simulates all it does\n {10}note: it is the default because .*\n {10}note: commands/,
    ),
  ]);
  const { stdout } = await at.run("doctor", "--running", "--json");
  expect(JSON.parse(stdout).checks).toContainEqual(
    expect.objectContaining({
      id: "provider-mock",
      level: "warn",
      notes: [standsIn, "commands are simulated"],
    }),
  );
  state.providers = [provider, { ...provider, name: "mock", default: false }];
  expect((await at.run("doctor", "--running")).stdout).toMatch(/ok {4}provider mock works/);
});

test("doctor --running tells each thing that is wrong", async () => {
  const notReady = { code: "unavailable", message: "this service is drained" };
  const cases: [unknown, Awaited<ReturnType<typeof found>>][] = [
    [(s: ReturnType<typeof fine>) => (s.live.version = "0.0.1"), [0, "warn version"]],
    [(s: ReturnType<typeof fine>) => (s.ready = { status: 503, json: notReady }), [1, "fail ready"]],
    [
      (s: ReturnType<typeof fine>) => (s.providers = [{ ...provider, healthy: false, error: "x" }]),
      [1, "fail provider-native"],
    ],
    [(s: ReturnType<typeof fine>) => (s.diagnostics.store.healthy = false), [1, "fail store"]],
    [(s: ReturnType<typeof fine>) => (s.diagnostics.store.latency_ms = 900), [0, "warn store"]],
    [
      (s: ReturnType<typeof fine>) => (s.diagnostics.store.refusal = "the database cannot be written"),
      [1, "fail store"],
    ],
    [
      (s: ReturnType<typeof fine>) => (s.diagnostics.process.reload_failed = "2020-01-01T00:00:00Z"),
      [1, "fail configuration"],
    ],
    [(s: ReturnType<typeof fine>) => (s.diagnostics.store.last_backup = undefined), [0, "warn backup"]],
    [
      (s: ReturnType<typeof fine>) => (s.diagnostics.store.last_backup = "2020-01-01T00:00:00Z"),
      [0, "warn backup"],
    ],
    [(s: ReturnType<typeof fine>) => (s.diagnostics.sandboxes.active = 90), [0, "warn capacity"]],
    [(s: ReturnType<typeof fine>) => (s.diagnostics.scheduler.spawn_queue_depth = 2), [0, "warn queue"]],
    [(s: ReturnType<typeof fine>) => (s.diagnostics.sandboxes.by_state.unhealthy = 1), [0, "warn sandboxes"]],
    [
      (s: ReturnType<typeof fine>) => (s.diagnostics.generated_at = "2020-01-01T00:00:00Z"),
      [0, "warn clock"],
    ],
    [
      (s: ReturnType<typeof fine>) =>
        (s.diagnostics.operations = [
          { operation: "spawn", provider: "native", success_total: 90, failure_total: 10 },
        ]),
      [0, "warn operation-spawn-native"],
    ],
  ];
  for (const [change, want] of cases)
    expect(await found(change as Parameters<typeof found>[0]), String(change)).toEqual(want);
});

test("doctor --running without a key that may read, and without a service", async () => {
  const well = serve(fine());
  at.service.answer = (request) =>
    ["/live", "/ready"].includes(request.path)
      ? well(request)
      : { status: 403, json: { code: "forbidden", message: "bound to an owner" } };
  const told = await at.run("doctor", "--running");
  expect([told.code, told.stdout]).toEqual([0, expect.stringContaining("--api-key")]);
  const nobody = await at.run("doctor", "--url", "http://127.0.0.1:9");
  expect([nobody.code, nobody.stdout]).toEqual([1, expect.stringContaining("no service answers")]);
});

test("pages that its advice names are there", () => {
  const source = readFileSync(new URL("commands/doctor-running.ts", import.meta.url), "utf8");
  const pages = [...source.matchAll(/docs\/[\w/]+\.md/g)].map(([page]) => page);
  expect(pages.length).toBeGreaterThan(1);
  for (const page of pages) readFileSync(new URL(`../../../${page}`, import.meta.url));
});

test("doctor --running says of a provider that does not answer what can be done", async () => {
  const state = fine();
  const ill = { ...provider, healthy: false, error: "no answer" };
  state.providers = [ill, { ...ill, name: "docker", default: false }];
  at.service.answer = serve(state);
  const { stdout } = await at.run("doctor", "--running");
  expect(stdout).toMatch(
    /fail {2}provider native does not work: no answer\n.* name another in providers\.default and restart\n/,
  );
  expect(stdout).toMatch(
    /warn {2}provider docker does not work: no answer\n.* providers\.docker\.enabled: false and a restart leave it out\n/,
  );
});

test("doctor --running does not say of a default that takes no spawns that it works", async () => {
  const state = fine();
  state.providers = [provider, { ...provider, name: "docker", default: false }];
  state.ready = { status: 503, json: { code: "unavailable", message: "12 MB were free" } };
  at.service.answer = serve(state);
  const { stdout } = await at.run("doctor", "--running");
  expect(stdout).toContain("fail  it takes no spawns: 12 MB were free\n");
  expect(stdout).toContain(
    "ok    provider native answers (looked at in 3 ms), and takes no spawns now, as above\n",
  );
  expect(stdout).toContain("ok    provider docker works (looked at in 3 ms)\n");
});
