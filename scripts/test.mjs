// `npm test`: gets what is missing, then checks, Rust tests and vitest, with a summary over all of them. What the
// machine cannot run is skipped aloud; with CI=true a skip of an expected suite is a failure. Arguments go to vitest.
// Plain JavaScript for any Node from 18 up.
import { spawn } from "node:child_process";
import { existsSync, mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import path from "node:path";
import { projectRoot } from "./node-runtime.mjs";
import { prepare } from "./setup/prepare.mjs";
import { ensureCargo } from "./setup/rust.mjs";
import { say } from "./setup/step.mjs";

const inCi = !["", "0", "false"].includes(process.env.CI ?? "");
const totals = { passed: 0, failed: 0, skipped: 0 };
const skips = [];
const failures = [];

const { node, agent } = await prepare({ dev: true });
process.env.PATH = `${path.dirname(node)}${path.delimiter}${process.env.PATH ?? ""}`;
if (!agent.ready) {
  const help = agent.command === undefined ? "" : `; to get it: ${agent.command}`;
  skip("everything that needs the agent", `${agent.why}${help}`);
}

await checks();
await rustTests();
await vitest(process.argv.slice(2));
summary();

async function checks() {
  if (!existsSync(path.join(projectRoot, "scripts", "check.ts"))) return;
  title("checks");
  const { code } = await run(node, ["scripts/check.ts"]);
  count("checks (types, lint, imports)", { passed: code === 0 ? 1 : 0, failed: code === 0 ? 0 : 1 });
}

async function rustTests() {
  title("Rust tests");
  const cargo = await ensureCargo();
  if (cargo.missing !== undefined) {
    skip("Rust tests", `${cargo.missing}; to get it: ${cargo.command}`);
    return;
  }
  const { code, output } = await run(cargo.cargo, ["test", "--workspace", "--quiet"], {
    cwd: path.join(projectRoot, "agent"),
    env: { ...cargo.env, CARGO_TERM_COLOR: "never" },
    keep: true,
  });
  const found = { passed: 0, failed: 0, skipped: 0 };
  for (const match of output.matchAll(/test result: \w+\. (\d+) passed; (\d+) failed; (\d+) ignored/g)) {
    found.passed += Number(match[1]);
    found.failed += Number(match[2]);
    found.skipped += Number(match[3]);
  }
  if (code !== 0 && found.failed === 0) found.failed = 1;
  count("Rust tests", found);
  for (const line of output.split("\n")) {
    const skipped = /^(?:test )?SKIPPED:? (.+)$/.exec(line.trim());
    if (skipped !== null) skip("Rust", skipped[1]);
  }
}

async function vitest(args) {
  title("vitest");
  const folder = mkdtempSync(path.join(tmpdir(), "alcove-test-"));
  const report = path.join(folder, "report.json");
  const { code } = await run(node, [
    path.join(projectRoot, "node_modules", "vitest", "vitest.mjs"),
    "run",
    "--reporter=default",
    "--reporter=json",
    `--outputFile.json=${report}`,
    ...args,
  ]);
  let result;
  try {
    result = JSON.parse(readFileSync(report, "utf8"));
  } catch {
    result = undefined;
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
  const found = {
    passed: result?.numPassedTests ?? 0,
    failed: result?.numFailedTests ?? 0,
    skipped: (result?.numPendingTests ?? 0) + (result?.numTodoTests ?? 0),
  };
  // A file that cannot be loaded holds no test that could fail.
  if (code !== 0 && found.failed === 0) found.failed = Math.max(1, result?.numFailedTestSuites ?? 1);
  count("vitest", found);
  for (const [suite, tests] of skippedSuites(result)) skip(suite, `${tests} tests`);
}

/** A suite that needs what the machine lacks says so in its title. */
function skippedSuites(result) {
  const suites = new Map();
  for (const file of result?.testResults ?? []) {
    for (const test of file.assertionResults ?? []) {
      if (test.status !== "pending" && test.status !== "skipped" && test.status !== "todo") continue;
      const suite = test.ancestorTitles.length > 0 ? test.ancestorTitles.join(" > ") : test.title;
      suites.set(suite, (suites.get(suite) ?? 0) + 1);
    }
  }
  return suites;
}

function title(text) {
  process.stdout.write(`\n── ${text} ${"─".repeat(Math.max(0, 60 - text.length))}\n`);
}

function skip(what, why) {
  skips.push({ what, why });
}

function count(suite, found) {
  totals.passed += found.passed ?? 0;
  totals.failed += found.failed ?? 0;
  totals.skipped += found.skipped ?? 0;
  if ((found.failed ?? 0) > 0) failures.push(`${suite}: ${found.failed} failed`);
}

function run(command, args, options = {}) {
  return new Promise((resolve) => {
    const child = spawn(command, args, {
      cwd: options.cwd ?? projectRoot,
      env: { ...process.env, ...options.env },
      stdio: options.keep ? ["ignore", "pipe", "inherit"] : "inherit",
    });
    let output = "";
    child.stdout?.on("data", (chunk) => {
      process.stdout.write(chunk);
      output = (output + String(chunk)).slice(-1_048_576);
    });
    child.once("error", (error) => {
      say(`${command}: ${error.message}`);
      resolve({ code: 127, output });
    });
    child.once("close", (code) => resolve({ code: code ?? 1, output }));
  });
}

function summary() {
  title("summary");
  for (const { what, why } of skips) process.stdout.write(`skipped  ${what}: ${why}\n`);
  for (const failure of failures) process.stdout.write(`FAILED   ${failure}\n`);
  // A suite whose requirement is missing says so in its title; a test skipped for a capability does not.
  const missing = skips.filter(
    ({ what }) => what.startsWith("everything") || what.startsWith("Rust") || what.includes("(skipped:"),
  );
  const missingInCi = inCi && missing.length > 0;
  if (missingInCi)
    process.stdout.write(`FAILED   CI must not skip: ${missing.map(({ what }) => what).join("; ")}\n`);
  const failed = totals.failed + (missingInCi ? 1 : 0);
  process.stdout.write(`${totals.passed} passed, ${failed} failed, ${totals.skipped} skipped\n`);
  process.exit(failed > 0 ? 1 : 0);
}
