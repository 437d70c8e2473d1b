// `npm test`: gets what is missing, then checks, Rust tests and vitest, with a summary over all of them. What the
// machine cannot run is skipped aloud; with CI=true a skip of an expected suite is a failure. Arguments go to vitest.
// Plain JavaScript for any Node from 18 up.
import { spawn } from "node:child_process";
import { existsSync, mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import path from "node:path";
import { agentTarget } from "./build-agent.mjs";
import { contractFindings, contractResults } from "./contract-matrix.mjs";
import { earlierRelease } from "./earlier-release.mjs";
import { projectRoot } from "./node-runtime.mjs";
import { prepare } from "./setup/prepare.mjs";
import { ensureCargo } from "./setup/rust.mjs";
import { say } from "./setup/step.mjs";

const inCi = !["", "0", "false"].includes(process.env.CI ?? "");
const totals = { passed: 0, failed: 0, skipped: 0 };
const skips = [];
const unstable = [];
/** More failing files than this are no matter of a busy machine, and are not run again. */
const mostFilesAgain = 6;
const failures = [];

const { node, agent } = await prepare({ dev: true, service: true });
process.env.PATH = `${path.dirname(node)}${path.delimiter}${process.env.PATH ?? ""}`;
if (!agent.ready) {
  const help = agent.command === undefined ? "" : `; to get it: ${agent.command}`;
  skip("everything that needs the agent", `${agent.why}${help}`);
}

await checks();
await rustTests();
ensureEarlierRelease();
await vitest(process.argv.slice(2));
summary();

async function checks() {
  if (!existsSync(path.join(projectRoot, "scripts", "check.ts"))) return;
  title("checks");
  const { code } = await run(node, ["scripts/check.ts"]);
  count("checks (types, lint, imports)", { passed: code === 0 ? 1 : 0, failed: code === 0 ? 0 : 1 });
}

function ensureEarlierRelease() {
  if (!agent.ready) return;
  title("an earlier release, for the test of upgrades");
  const { missing } = earlierRelease();
  if (missing !== undefined) skip("upgrades of a service with running sandboxes", missing);
}

async function rustTests() {
  title("Rust tests");
  const cargo = await ensureCargo();
  if (cargo.missing !== undefined) {
    skip("Rust tests", `${cargo.missing}; to get it: ${cargo.command}`);
    return;
  }
  // For what they are shipped as.
  const target = agent.ready ? { CARGO_BUILD_TARGET: agentTarget() } : {};
  const cargoTest = (args) =>
    run(cargo.cargo, ["test", "--workspace", "--quiet", "--no-fail-fast", ...args], {
      cwd: path.join(projectRoot, "agent"),
      env: { ...cargo.env, CARGO_TERM_COLOR: "never", ...target },
      keep: true,
    });
  const { code, output } = await cargoTest([]);
  const found = rustResults(output);
  if (code !== 0 && found.failed === 0) found.failed = 1;
  const names = failedRustTests(output);
  if (found.failed > 0 && names.length === found.failed && names.length <= mostFilesAgain) {
    title(`Rust tests, once more and alone: ${names.join(" ")}`);
    const second = await cargoTest(["--", "--exact", "--test-threads=1", ...names]);
    const stillFailed = failedRustTests(second.output);
    const passes = second.code === 0 || stillFailed.length > 0 ? names.length - stillFailed.length : 0;
    if (passes > 0) {
      unstable.push(...names.filter((name) => !stillFailed.includes(name)).map((name) => `Rust: ${name}`));
      found.passed += passes;
      found.failed -= passes;
    }
  }
  count("Rust tests", found);
  for (const line of output.split("\n")) {
    const skipped = /^(?:test )?SKIPPED:? (.+)$/.exec(line.trim());
    if (skipped !== null) skip("Rust", skipped[1]);
  }
}

function rustResults(output) {
  const found = { passed: 0, failed: 0, skipped: 0 };
  for (const match of output.matchAll(/test result: \w+\. (\d+) passed; (\d+) failed; (\d+) ignored/g)) {
    found.passed += Number(match[1]);
    found.failed += Number(match[2]);
    found.skipped += Number(match[3]);
  }
  return found;
}

/** The names below the last `failures:` of each test program. */
function failedRustTests(output) {
  const names = [];
  for (const [list] of output.matchAll(/^failures:\n(?: {4}\S+\n)+/gm))
    names.push(
      ...list
        .split("\n")
        .slice(1)
        .map((line) => line.trim())
        .filter((line) => line !== ""),
    );
  return names;
}

/**
 * Runs the suites, then the files that failed once more, alone. What fails twice has failed; what passes alone is named
 * as unstable, a bug to look into: see docs/decisions/tests.md.
 */
async function vitest(args) {
  title("vitest");
  const folder = mkdtempSync(path.join(tmpdir(), "alcove-contract-"));
  process.env.CONTRACT_RESULTS = path.join(folder, "results");
  const first = await vitestRun(args);
  let lastRun = first;
  let { failed } = first;
  let { passed } = first;
  const again = failedFiles(first.report);
  // A failure that no file owns, or failures everywhere, are no matter of load.
  if (failed > 0 && again.length > 0 && again.length <= mostFilesAgain) {
    title(`vitest, once more and alone: ${again.length} of ${first.report.testResults.length} files`);
    const second = await vitestRun(["--no-file-parallelism", ...again]);
    lastRun = second;
    const stillFailed = failedTests(second.report);
    for (const test of failedTests(first.report)) if (!stillFailed.has(test)) unstable.push(test);
    passed += Math.max(0, failed - second.failed);
    failed = second.failed;
  }
  count("vitest", { passed, failed, skipped: first.skipped });
  if (failed > 0) failures.push(...lastRun.reasons.map((reason) => `  ${reason}`));
  for (const [suite, tests] of skippedSuites(first.report)) skip(suite, `${tests} tests`);
  const findings = contractFindings(contractResults(process.env.CONTRACT_RESULTS));
  rmSync(folder, { recursive: true });
  if (findings.length > 0)
    count("the table of docs/providers.md (npm run test:contract -- --matrix --write)", {
      failed: findings.length,
    });
  failures.push(...findings.slice(0, 10).map((finding) => `  ${finding}`));
}

async function vitestRun(args) {
  const folder = mkdtempSync(path.join(tmpdir(), "alcove-test-"));
  const file = path.join(folder, "report.json");
  const errors = path.join(folder, "errors");
  const { code } = await run(
    node,
    [
      path.join(projectRoot, "node_modules", "vitest", "vitest.mjs"),
      "run",
      "--reporter=default",
      "--reporter=json",
      "--reporter=./scripts/vitest-errors.mjs",
      "--reporter=./scripts/contract-reporter.mjs",
      `--outputFile.json=${file}`,
      ...args,
    ],
    { env: { UNOWNED_ERRORS_FILE: errors } },
  );
  let report;
  let unowned = [];
  try {
    report = JSON.parse(readFileSync(file, "utf8"));
    unowned = readFileSync(errors, "utf8")
      .split("\n")
      .filter((line) => line !== "");
  } catch {
    report = undefined;
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
  const found = {
    report,
    reasons: [...failureReasons(report), ...unowned],
    passed: report?.numPassedTests ?? 0,
    failed: report?.numFailedTests ?? 0,
    skipped: (report?.numPendingTests ?? 0) + (report?.numTodoTests ?? 0),
  };
  // A file that cannot be loaded holds no test that could fail.
  if (code !== 0 && found.failed === 0) found.failed = Math.max(1, report?.numFailedTestSuites ?? 1);
  return found;
}

function failedFiles(report) {
  return (report?.testResults ?? []).filter(({ status }) => status === "failed").map(({ name }) => name);
}

function failedTests(report) {
  const failed = new Set();
  for (const file of report?.testResults ?? []) {
    if (file.status !== "failed") continue;
    const name = path.relative(projectRoot, file.name);
    const tests = file.assertionResults.filter(({ status }) => status === "failed");
    if (tests.length === 0) failed.add(name);
    for (const { fullName } of tests) failed.add(`${name}: ${fullName}`);
  }
  return failed;
}

/** A line for each test, or file, that failed: where, which, and how its reason begins. */
function failureReasons(report) {
  const reasons = [];
  for (const file of report?.testResults ?? []) {
    if (file.status !== "failed") continue;
    const name = path.relative(projectRoot, file.name);
    const tests = file.assertionResults.filter(({ status }) => status === "failed");
    if (tests.length === 0) reasons.push(`${name}: ${beginning(file.message)}`);
    for (const { fullName, failureMessages } of tests)
      reasons.push(`${name}: ${fullName}: ${beginning(failureMessages?.[0])}`);
  }
  return reasons;
}

function beginning(text = "") {
  const [first = ""] = text.split("\n    at ");
  return first.replaceAll(/\s+/g, " ").slice(0, 600);
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
  for (const test of unstable) process.stdout.write(`UNSTABLE ${test}: failed, then passed alone\n`);
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
