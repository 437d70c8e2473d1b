import { spawn } from "node:child_process";
import { once } from "node:events";
import { existsSync, readdirSync } from "node:fs";
import path from "node:path";
import { text } from "node:stream/consumers";
import { fileURLToPath } from "node:url";
import { expect, onTestFinished, test, vi } from "vitest";
import { buildWhatIsMeasured } from "../../../bench/built.ts";
import { growth, neverSeen } from "../../../bench/growth.ts";
import { hottest } from "../../../bench/profile.ts";

const folder = fileURLToPath(new URL("../../../bench/", import.meta.url));

/** @returns what it ended with, and what it said. */
async function run(program: "main.ts" | "soak.ts" | "guard.ts", ...args: string[]) {
  const child = spawn(process.execPath, [path.join(folder, program), ...args], {
    stdio: ["ignore", "pipe", "pipe"],
  });
  const [said, printed, [code]] = await Promise.all([
    text(child.stderr),
    text(child.stdout),
    once(child, "exit"),
  ]);
  return [code, printed, said.trim()];
}

test.each([
  ["main.ts", "--urll x", /^bench: Unknown option '--urll'.*$/],
  ["main.ts", "--url 127.0.0.1:7423", /^bench: .* is no http:\/\/ or https:\/\/ address$/],
  ["main.ts", "--url http://127.0.0.1:1 mock", /^bench: with --url .*: mock$/],
  ["main.ts", "nothing", /^bench: no scenario nothing; there are: native-exec.*$/],
  ["main.ts", "--key abc mock", /^bench: --key is for .*$/],
  ["guard.ts", "--all", /^bench:guard: Unknown option '--all'.*$/],
  ["soak.ts", "--minute 1", /^soak: Unknown option '--minute'.*$/],
  ["soak.ts", "--minutes soon", /^soak: --minutes soon is no time.*$/],
] as const)("%s refuses %s in one line", async (program, args, line) => {
  expect(await run(program, ...args.split(" "))).toEqual([2, "", expect.stringMatching(line)]);
});

test.each([
  ["main.ts", "-h", /^names: native-exec, .*mock/m],
  ["soak.ts", "--help", /--minutes 30/],
  ["guard.ts", "--help", /^npm run bench:guard/],
] as const)("%s %s tells what there is, and measures and builds nothing", async (program, asked, told) => {
  expect(await run(program, asked)).toEqual([0, expect.stringMatching(told), ""]);
});

test("an agent that cannot be built of its sources is told before it is measured", async () => {
  const said = vi.spyOn(console, "error").mockReturnValue();
  onTestFinished(() => said.mockRestore());
  await buildWhatIsMeasured("soak", async () => ({ node: "node", agent: { ready: false, why: "no cargo" } }));
  expect(said.mock.calls).toEqual([[expect.stringMatching(/^soak: no cargo; .*built before/)]]);
});

test("a soak finds what grows, and what it never saw though there were sandboxes", () => {
  const held = { memory: 100, descriptors: 9, processes: 8, mounts: 7, directories: 4, groups: 8 };
  const slack = { countSlack: 4 };
  expect(growth(held, { ...held, memory: 114, groups: 12 }, slack)).toEqual([]);
  expect(growth(held, { ...held, memory: 116, groups: 13 }, slack)).toEqual([
    "memory grew from 100 to 116",
    "groups grew from 8 to 13",
  ]);
  const bare = { ...held, processes: 0, groups: 0 };
  expect(neverSeen([held, bare], { grouped: true })).toEqual([]);
  expect(neverSeen([bare], { grouped: true })).toEqual(["processes", "groups"]);
  expect(neverSeen([bare], { grouped: false })).toEqual([]);
  expect(neverSeen([{ ...held, directories: 0 }], { grouped: false })).toEqual(["directories"]);
});

test.each(["http", "https"])(
  "a service that is not there, by %s, is told, and leaves no result",
  async (how) => {
    const results = () => (existsSync(`${folder}results`) ? readdirSync(`${folder}results`) : []);
    const before = results();
    const url = `${how}://127.0.0.1:1`;
    const said = `bench: ${url} …\nbench: ${url} FAILED: connect ECONNREFUSED 127.0.0.1:1`;
    expect(await run("main.ts", "--url", url)).toEqual([1, "", said]);
    expect(results()).toEqual(before);
  },
);

test("a profile is told by the functions that most time was spent in, beside waiting", () => {
  const node = (id: number, functionName: string) => ({
    id,
    callFrame: { functionName, url: "file:///a/b/c/d.ts", lineNumber: 6 },
  });
  const profile = {
    nodes: [node(1, "(idle)"), node(2, "parse"), node(3, "")],
    samples: [1, 2, 3, 2],
    timeDeltas: [0, 9_000, 2_000, 1_000, 4_000],
  };
  expect(hottest(JSON.stringify(profile))).toEqual(["6 ms parse b/c/d.ts:7", "1 ms (no name) b/c/d.ts:7"]);
});
