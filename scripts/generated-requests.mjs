// node scripts/generated-requests.mjs mock|native [--examples N] [--seconds N] [--operations ID,ID]
// Sends generated requests to a service of this clone, from its own OpenAPI document, with every check of schemathesis
// on: no 5xx, no undocumented status, no answer that differs from its schema, nothing invalid accepted, nothing valid
// refused. The seed is fixed, so a failure comes again. With CI=true fewer requests than promised are a failure.
// Making a request up costs ten times what answering it does: two processes make them, each for half of the operations
// and with sandboxes of its own.
import { spawn, spawnSync } from "node:child_process";
import { existsSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import path from "node:path";
import { fileURLToPath } from "node:url";

const version = "4.32.5";
const seed = "20261122";
const key = "generated-requests";
const root = path.dirname(path.dirname(fileURLToPath(import.meta.url)));
const [provider = "mock", ...rest] = process.argv.slice(2);
const option = (name, fallback) => {
  const at = rest.indexOf(`--${name}`);
  return at === -1 ? fallback : rest[at + 1];
};
/** Of each operation, in the fuzzing phase; the phases before it send what they have to. */
const examples = Number(option("examples", provider === "mock" ? "270" : "20"));
/** For what hangs, not for a slow machine. */
const seconds = Number(option("seconds", "1200"));
/** Requests that a run in CI has to make. */
const promised = provider === "mock" ? 20_000 : 2_000;
const processes = 2;
/** Some alone, to look closer. */
const chosen = option("operations")?.split(",");

/** Endless by nature: what they send is tested elsewhere. */
const excluded = ["streamEvents", "watchFiles", "execWebSocket", "openTunnel"];
/** Their large bodies take longest to make up, or they take nothing at all: these get a share of the examples. */
const shares = {
  ...{ exec: 0.6, startExec: 0.6, checkAdmission: 0.6, spawnSandbox: 0.6 },
  ...{ listProviders: 0.4, testProviders: 0.4, pruneSandboxes: 0.4 },
};

const directory = mkdtempSync(path.join(tmpdir(), "alcove-generated-"));
const configured = path.join(directory, "generated-requests.toml");
let service;
try {
  const schemathesis = install();
  service = await startService();
  process.exitCode = await runAll(schemathesis, service);
} catch (error) {
  console.error(`generated-requests: ${error.message}`);
  process.exitCode = 1;
} finally {
  await stop(service);
  rmSync(directory, { recursive: true, force: true });
}

/** @returns the program, from a virtual environment of its own. */
function install() {
  const home = path.join(root, ".cache", `schemathesis-${version}`);
  const program = path.join(home, "bin", "schemathesis");
  if (existsSync(program)) return program;
  const step = (what, command, args) => {
    const { status, error } = spawnSync(command, args, { stdio: "inherit" });
    if (status !== 0) throw new Error(`${what} failed${error ? `: ${error.message}` : ""}`);
  };
  step("making a Python environment (Debian: python3-venv)", "python3", ["-m", "venv", home]);
  try {
    const pip = path.join(home, "bin", "pip");
    const args = ["install", "--quiet", "--disable-pip-version-check", `schemathesis==${version}`];
    step(`installing schemathesis ${version} from the Python package index`, pip, args);
  } catch (error) {
    rmSync(home, { recursive: true, force: true });
    throw error;
  }
  return program;
}

async function startService() {
  const child = spawn(path.join(root, "bin", "alcove"), ["serve"], {
    cwd: directory,
    stdio: ["ignore", "pipe", "pipe"],
    env: {
      ...process.env,
      ALCOVE_DATA_DIR: path.join(directory, "data"),
      ALCOVE_SERVER_PORT: "0",
      ALCOVE_AUTH_API_KEY: key,
      ALCOVE_PROVIDERS_DEFAULT: provider,
      ...Object.fromEntries(
        ["native", "docker", "proot", "mock"].map((name) => [
          `ALCOVE_PROVIDERS_${name.toUpperCase()}_ENABLED`,
          String(name === provider),
        ]),
      ),
      ALCOVE_IMAGES_PULL_POLICY: "never",
      ALCOVE_DEFAULTS_TTL: "2s",
      ALCOVE_DEFAULTS_MAX_TTL: "30m",
      ALCOVE_DEFAULTS_MAX_EXEC_TIMEOUT: "2s",
      ALCOVE_DEFAULTS_MAX_SANDBOXES: "24",
      // The largest that the schema allows: what is generated does not depend on the machine.
      ALCOVE_DEFAULTS_MAX_MEMORY_MB: String(1_048_576 * 24),
      ALCOVE_DEFAULTS_MAX_VCPUS: String(1_024 * 24),
      ALCOVE_SERVER_DESTROY_ON_EXIT: "true",
      ALCOVE_LOGGING_LEVEL: "error",
      ALCOVE_LOGGING_FORMAT: "json",
    },
  });
  let said = "";
  child.stderr.on("data", (chunk) => {
    said += chunk;
    process.stderr.write(chunk);
  });
  const url = await new Promise((resolve, reject) => {
    const listen = (chunk) => {
      said += chunk;
      const found = /http:\/\/127\.0\.0\.1:\d+/.exec(said);
      if (found !== null) resolve(found[0]);
    };
    child.stdout.on("data", listen);
    child.stderr.on("data", listen);
    child.on("exit", (code) => reject(new Error(`the service ended with ${code}: ${said}`)));
  });
  return { child, url };
}

async function stop(running) {
  if (running === undefined || running.child.exitCode !== null) return;
  const ended = new Promise((resolve) => running.child.once("exit", resolve));
  running.child.kill("SIGTERM");
  const timer = setTimeout(() => running.child.kill("SIGKILL"), 40_000);
  await ended;
  clearTimeout(timer);
}

/** Sandboxes with commands and files in them, and quotas, for requests to find. */
async function known(url) {
  const call = async (method, to, body) => {
    const response = await fetch(`${url}/api/v1${to}`, {
      method,
      headers: { "x-api-key": key, "content-type": "application/json" },
      ...(body !== undefined && { body: JSON.stringify(body) }),
      signal: AbortSignal.timeout(60_000),
    });
    if (!response.ok)
      throw new Error(`${method} ${to} answered ${response.status}: ${await response.text()}`);
    return response.json();
  };
  const spawnOne = async () => (await call("POST", "/sandboxes", { provider, ttl: "30m" })).id;
  const sandboxes = [await spawnOne(), await spawnOne(), await spawnOne()];
  const ending = [await spawnOne(), await spawnOne(), "sb-000000000000"];
  const execs = {};
  for (const id of sandboxes) {
    await call("POST", `/sandboxes/${id}/files`, { path: "/workspace/main.py", content: "print(1)" });
    const start = async (command) => (await call("POST", `/sandboxes/${id}/execs`, { command })).exec_id;
    execs[id] = [await start("echo hello"), await start("cat")];
  }
  // Requests save and delete them; so many that a deletion leaves some.
  const owners = ["owner-1", "owner-2", "owner-3", "owner-4"];
  for (const owner of owners) await call("PUT", `/quotas/${owner}`, { max_sandboxes: 3 });
  return { provider, sandboxes, ending, execs, owners };
}

async function runAll(schemathesis, { url }) {
  const { paths } = await (await fetch(`${url}/api/v1/openapi.json`)).json();
  const operations = Object.values(paths)
    .flatMap((methods) => Object.values(methods))
    .map(({ operationId }) => operationId)
    .filter((id) => id !== undefined && (chosen?.includes(id) ?? !excluded.includes(id)));
  const parts = Array.from({ length: processes }, (_, part) =>
    operations.filter((_, index) => index % processes === part),
  );
  writeFileSync(configured, configuration());
  const startedMs = performance.now();
  const runs = await Promise.all(parts.map((part, index) => run({ schemathesis, url, part, index })));
  for (const { output } of runs) process.stdout.write(output);
  const requests = runs.reduce((sum, one) => sum + one.requests, 0);
  const took = Math.round((performance.now() - startedMs) / 1_000);
  const late = runs.some((one) => one.late) ? `, stopped after ${seconds} s` : "";
  console.log(`generated-requests: ${requests} requests on ${provider} in ${took} s${late}`);
  const status = Math.max(...runs.map((one) => one.status));
  if (requests >= promised) return status;
  console.log(`generated-requests: ${promised} are promised`);
  return process.env.CI === "true" ? 1 : status;
}

/** What the file in this folder says, and how many requests. */
function configuration() {
  const share = ([id, part]) =>
    `[[operations]]\ninclude-operation-id = "${id}"\ngeneration.max-examples = ${Math.ceil(examples * part)}\n`;
  return [
    `[generation]\nmax-examples = ${examples}\n`,
    readFileSync(path.join(root, "scripts", "generated-requests.toml"), "utf8"),
    ...Object.entries(shares).map(share),
  ].join("\n");
}

/** One process of schemathesis, for some of the operations. */
async function run({ schemathesis, url, part, index }) {
  const counted = path.join(directory, `requests-${index}`);
  const args = [
    ...["--config-file", configured, "run"],
    `${url}/api/v1/openapi.json`,
    ...["--url", url, "--header", `X-API-Key: ${key}`, "--checks", "all", "--seed", seed],
    ...["--phases", "examples,coverage,fuzzing", "--request-timeout", "30"],
    ...["--suppress-health-check", "all", "--workers", "1", "--continue-on-failure", "--no-color"],
    ...part.flatMap((id) => ["--include-operation-id", id]),
  ];
  const child = spawn(schemathesis, args, {
    cwd: directory,
    stdio: ["ignore", "pipe", "inherit"],
    env: {
      ...process.env,
      SCHEMATHESIS_HOOKS: path.join(root, "scripts", "generated-requests.py"),
      GENERATED_REQUESTS_KNOWN: JSON.stringify(await known(url)),
      GENERATED_REQUESTS_COUNT: counted,
      NO_PROXY: "127.0.0.1",
    },
  });
  let output = "";
  child.stdout.on("data", (chunk) => (output += chunk));
  let late = false;
  const timer = setTimeout(() => {
    late = true;
    child.kill("SIGINT");
  }, seconds * 1_000);
  const ended = await new Promise((resolve) => child.once("exit", (code) => resolve(code ?? 1)));
  clearTimeout(timer);
  const failed = /= (FAILURES|ERRORS) =/.test(output);
  const requests = existsSync(counted) ? Number(readFileSync(counted, "utf8")) : 0;
  return { output, requests, late, status: late ? Number(failed) : ended };
}
