import { expect, it, vi } from "vitest";
import type { CheckedCandidate } from "./candidate-checks.ts";
import { loadConfig } from "./config/load.ts";
import { ScriptedProvider } from "./core/testing/scripted-provider.ts";
import { silentLogger } from "./platform/logger.ts";
import type { ProviderCheck } from "./ports/index.ts";
import { selectProviders, stillOpen } from "./provider-selection.ts";

const works = { healthy: true, notes: [] };
const noEngine = { healthy: false, error: "no engine", notes: [] };
const silent = { check: { healthy: false, error: "no answer", notes: [] }, unanswered: true };

function checked(
  name: "native" | "docker",
  state: Omit<CheckedCandidate, "candidate">,
  enabled?: boolean,
): CheckedCandidate {
  const provider = new ScriptedProvider({ name });
  return { candidate: { name, isolation: "enforced", enabled, provider }, ...state };
}

const options = (wanted = "native", sandboxes: [string, number][] = [], lastDefault?: string) => ({
  config: loadConfig({ env: { ALCOVE_PROVIDERS_DEFAULT: wanted }, cwd: "/" }),
  root: true,
  logger: silentLogger,
  before: { lastDefault, sandboxes: new Map(sandboxes) },
});

const names = (selection: ReturnType<typeof selectProviders>) => selection.providers.map(({ name }) => name);

it("never chooses a hosted provider by itself, and does when it is named", () => {
  const hosted = {
    name: "e2b" as const,
    isolation: "hosted" as const,
    enabled: true,
    provider: new ScriptedProvider({ name: "e2b" }),
  };
  const simulated = { ...hosted, name: "mock" as const, isolation: "simulated" as const };
  const both = [hosted, simulated].map((candidate) => ({ candidate, check: works }));
  expect(selectProviders(both, options("auto")).defaultName).toBe("mock");
  expect(selectProviders(both, options("e2b")).defaultName).toBe("e2b");
  const broken = checked("native", { check: { healthy: false, error: "no namespaces", notes: [] } });
  expect(selectProviders([broken, ...both], options("auto")).notes.get("mock")).toMatch(
    /nothing that runs programs worked when the service started \(native: no namespaces\): mend one/,
  );
  expect(selectProviders(both, options("mock")).notes).toEqual(new Map());
});

it("keeps a provider that has not answered yet, as an ill one, and says how to leave it out", () => {
  const warn = vi.spyOn(silentLogger, "warn");
  const selection = selectProviders(
    [checked("native", { check: works }), checked("docker", silent)],
    options(),
  );
  expect(names(selection)).toEqual(["native", "docker"]);
  expect(selection.failing).toEqual([{ name: "docker", reason: "no answer" }]);
  expect(warn.mock.lastCall?.[1]).toMatch(
    /provider docker takes no sandboxes.*providers.docker.enabled: false/,
  );
  warn.mockRestore();
});

it("leaves out a provider that was found not to work, unless it was asked for or its sandboxes are there", () => {
  const native = checked("native", { check: works });
  const left = selectProviders([native, checked("docker", { check: noEngine })], options());
  expect(names(left)).toEqual(["native"]);
  expect(left.refused).toEqual([{ name: "docker", reason: "no engine", tried: true }]);
  const asked = selectProviders([native, checked("docker", { check: noEngine }, true)], options());
  expect(names(asked)).toEqual(["native", "docker"]);
  const kept = selectProviders(
    [native, checked("docker", { check: noEngine })],
    options("native", [["docker", 1]]),
  );
  expect(names(kept)).toEqual(["native", "docker"]);
  expect(kept.failing).toEqual([{ name: "docker", reason: "no engine" }]);
});

it("leaves out a provider that was switched off, though its sandboxes are there", () => {
  const off = checked("docker", { check: undefined, excluded: "off" }, false);
  const selection = selectProviders(
    [checked("native", { check: works }), off],
    options("auto", [["docker", 1]], "docker"),
  );
  expect(names(selection)).toEqual(["native"]);
  expect(selection.refused).toEqual([{ name: "docker", reason: "off", tried: false }]);
});

it("auto stays on the default of the last start while its sandboxes are there", () => {
  const all = [checked("native", silent), checked("docker", { check: works })];
  expect(selectProviders(all, options("auto", [["native", 1]], "native")).defaultName).toBe("native");
  expect(selectProviders(all, options("auto")).defaultName).toBe("docker");
});

it("auto simulates nothing in place of a provider that has failed and has sandboxes here", () => {
  const provider = new ScriptedProvider({ name: "mock" });
  const mock = { name: "mock" as const, isolation: "simulated" as const, enabled: undefined, provider };
  const all = [checked("docker", { check: noEngine }), { candidate: mock, check: works }];
  const selection = selectProviders(all, options("auto", [["docker", 3]]));
  expect(selection.defaultName).toBe("docker");
  expect(selection.failing).toEqual([{ name: "docker", reason: "no engine" }]);
});

it("leaves nothing open but how the default is when that is named", () => {
  const all = [checked("native", silent), checked("docker", { check: works })];
  expect(stillOpen(all, options("docker"))).toBe("nothing");
  expect(stillOpen(all, options("native"))).toBe("default");
  expect(stillOpen(all, options("auto"))).toBe("choice");
  const off = [checked("native", silent), checked("docker", { check: undefined, excluded: "off" }, false)];
  expect(stillOpen(off, options("docker"))).toBe("nothing");
});

it("leaves open how the default of the last start is while its sandboxes are there, and the choice when it is off", () => {
  const all = [checked("native", silent), checked("docker", silent)];
  expect(stillOpen(all, options("auto", [["docker", 1]], "docker"))).toBe("default");
  const answered = [checked("native", silent), checked("docker", { check: noEngine })];
  expect(stillOpen(answered, options("auto", [["docker", 1]], "docker"))).toBe("nothing");
  const off = [checked("native", silent), checked("docker", { check: undefined, excluded: "off" }, false)];
  expect(stillOpen(off, options("auto", [["docker", 1]], "docker"))).toBe("choice");
  // Of a last default without sandboxes, which another has replaced, nothing is waited for.
  const replaced = [checked("native", { check: works }), checked("docker", silent)];
  expect(stillOpen(replaced, options("auto", [], "docker"))).toBe("nothing");
});

it("a provider that is used and takes no spawns now is told of, and why", () => {
  const failing = (check: ProviderCheck) =>
    selectProviders([checked("native", { check }, true)], options()).failing;
  expect(failing({ healthy: true, notes: [] })).toEqual([]);
  expect(failing({ healthy: true, notes: [], cannotSpawn: "a helper is missing" })).toEqual([
    { name: "native", reason: "a helper is missing" },
  ]);
  expect(failing({ healthy: false, notes: [], error: "it is ill" })).toEqual([
    { name: "native", reason: "it is ill" },
  ]);
});
