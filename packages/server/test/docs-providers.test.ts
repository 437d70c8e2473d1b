import { existsSync, readdirSync, readFileSync } from "node:fs";
import { type Capability, capabilities } from "@alcove/wire";
import { describe, expect, it } from "vitest";
import { providerNames } from "../src/config/providers.ts";
import { silentLogger } from "../src/platform/logger.ts";
import { systemClock } from "../src/platform/system-clock.ts";
import { owedFor } from "../src/ports/contract/provider/owed-for.ts";
import { contractSubjects } from "../src/ports/contract/provider/subjects.ts";
import { agentCapabilities } from "../src/providers/agent/capabilities.ts";
import { CustomProvider } from "../src/providers/custom/index.ts";
import { E2bProvider } from "../src/providers/e2b/index.ts";
import { MockProvider } from "../src/providers/mock/index.ts";

const docs = new URL("../../../docs/", import.meta.url);
const page = (name: string) => readFileSync(new URL(`${name}.md`, docs), "utf8");

/** Titles of the contract's cases, as their files have them. */
function caseTitles(): string[] {
  const folder = new URL("../src/ports/contract/provider/", import.meta.url);
  return readdirSync(folder)
    .filter((file) => file.endsWith("-contract.ts"))
    .flatMap((file) => [
      ...readFileSync(new URL(file, folder), "utf8").matchAll(/^ {2}it\((["'])(.+?)\1, /gm),
    ])
    .map(([, , title = ""]) => title);
}

describe("docs/providers.md", () => {
  const [, table = ""] = /<!-- contract matrix -->(.*?)<!-- end/s.exec(page("providers")) ?? [];
  const [header = [], , ...rows] = table
    .trim()
    .split("\n")
    .map((line) =>
      line
        .split("|")
        .slice(1, -1)
        .map((cell) => cell.trim()),
    );
  const cases = rows.filter(([title]) => !title?.startsWith("**"));

  it("has a column for each provider that runs the contract, and a row for each case", () => {
    expect(header.slice(1).sort()).toEqual([...contractSubjects].sort());
    expect(cases.map(([title]) => title).sort()).toEqual(caseTitles().sort());
  });

  it("has a column for every provider", () => {
    const run = new Set(contractSubjects.map((subject) => subject.split(/[ ,]/)[0]));
    expect(providerNames.filter((name) => !run.has(name))).toEqual([]);
  });

  it("has no failed cell, and none that was not run", () => {
    const marks = new Set(cases.flatMap(([, ...cells]) => cells));
    expect([...marks].sort()).toEqual(["–", "✓"].sort());
  });

  it("has nothing not announced but what the table of capabilities lets a provider not owe", () => {
    const left = cases.filter(([, ...cells]) => cells.includes("–")).map(([title = ""]) => title);
    expect(left.filter((title) => owedFor[title] === undefined)).toEqual([]);
  });
});

describe.each(providerNames)("the page of %s", (name) => {
  it("says how it isolates, what it can, what bounds it and what it costs", () => {
    expect(existsSync(new URL(`${name}-provider.md`, docs))).toBe(true);
    const headings = [...page(`${name}-provider`).matchAll(/^## (.+)$/gm)].map(([, heading]) => heading);
    expect(headings).toEqual(expect.arrayContaining(["Isolation", "Capabilities", "Limits", "Cost"]));
    expect(page("providers")).toContain(`(${name}-provider.md)`);
    expect(page("api/providers")).toContain(`(../${name}-provider.md)`);
    expect(page("security")).toContain(`\n## ${name}\n`);
  });
});

/** Capabilities that no case of the contract is owed for, and why. */
const withoutCase: Partial<Record<Capability, string>> = {
  spawn: "every provider has it, and owes its cases",
  exec: "every provider has it, and owes its cases",
  exec_stream: "every provider has it, and owes its cases",
  console: "every provider has it, and owes its cases",
  health: "every provider has it, and owes its cases",
  runtime_inventory: "every provider has it, and owes its cases",
  exec_limits: "its case asks for it, or for the refusal that names it",
  exec_usage: "the black-box suite asks for what it tells, or for the refusal that names it",
  container: "tells how sandboxes are kept apart",
  microvm: "tells how sandboxes are kept apart",
  userspace_isolation: "tells how sandboxes are kept apart",
  vsock_agent: "tells how agents are reached",
  snapshots: "tells how sandboxes start: a column of its own has them",
};

describe("capabilities", () => {
  it("have each a case of the contract that is owed for them, or a reason to have none", () => {
    const owed = new Set(Object.values(owedFor).flat());
    expect(capabilities.filter((each) => !owed.has(each) && withoutCase[each] === undefined)).toEqual([]);
    expect(capabilities.filter((each) => owed.has(each) && withoutCase[each] !== undefined)).toEqual([]);
  });

  const names = (text = "") => [...text.matchAll(/`([a-z][a-z0-9_]*)`/g)].map(([, name = ""]) => name);
  const everybodys = names(/^\| (.+) \| what every provider can \|$/m.exec(page("api/providers"))?.[1]);
  const common = { logger: silentLogger, clock: systemClock, instanceId: "docs", noteKey: Buffer.alloc(32) };
  const network = { networkMode: "none", timeoutMs: 1_000 } as const;
  const announced = {
    "an agent": new Set(agentCapabilities),
    mock: new MockProvider({ ...common, config: { defaultImage: "mock", maxWorkers: 1 } }).capabilities,
    // Neither asks anybody for anything before it is used.
    e2b: new E2bProvider({
      ...common,
      config: {
        ...network,
        defaultImage: "base",
        apiKey: "k",
        domain: "e2b.test",
        apiUrl: "",
        sandboxUrl: "",
        maxLifetimeMs: 1_000,
      },
    }).capabilities,
    custom: new CustomProvider({
      ...common,
      config: {
        ...network,
        defaultImage: "base",
        url: "http://127.0.0.1:1",
        apiKey: "",
        authHeader: "bearer",
      },
    }).capabilities,
  };

  it.each(Object.entries(announced))(
    "that every provider has by docs/api/providers.md %s has",
    (_of, all) => {
      expect(everybodys).toContain("spawn");
      expect(everybodys.filter((name) => ![...all].some((one) => one === name))).toEqual([]);
    },
  );

  it.each([
    ["mock", /^## Capabilities\n\n(.*?)What it cannot do/ms],
    ["e2b", /^\| (.*) \| yes \| \|$/m],
  ] as const)("that the page of %s lists beyond those are those announced", (name, list) => {
    const beyond = (all: Iterable<string>) => [...all].filter((one) => !everybodys.includes(one)).sort();
    expect(beyond(names(list.exec(page(`${name}-provider`))?.[1]))).toEqual(beyond(announced[name]));
  });
});
