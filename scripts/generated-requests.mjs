// node scripts/generated-requests.mjs mock|native [--examples N] [--seconds N]
// Sends generated requests to a service of this clone, from its own OpenAPI document, with every check of schemathesis
// on: no 5xx, no undocumented status, no answer that differs from its schema, nothing invalid accepted, nothing valid
// refused. The seed is fixed, so a failure comes again.
import { spawn, spawnSync } from "node:child_process";
import { existsSync, mkdtempSync, rmSync } from "node:fs";
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
const examples = option("examples", provider === "mock" ? "600" : "55");
const seconds = Number(option("seconds", "240"));

/** Endless by nature: what they send is tested elsewhere. */
const excluded = ["streamEvents", "watchFiles", "execWebSocket"];

const directory = mkdtempSync(path.join(tmpdir(), "alcove-generated-"));
let service;
try {
  const schemathesis = install();
  service = await startService();
  process.exitCode = await run(schemathesis, service);
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
      ...(provider === "mock" && { ALCOVE_PROVIDERS_MOCK_ENABLED: "true" }),
      ALCOVE_IMAGES_PULL_POLICY: "never",
      ALCOVE_DEFAULTS_TTL: "2s",
      ALCOVE_DEFAULTS_MAX_TTL: "30m",
      ALCOVE_DEFAULTS_MAX_EXEC_TIMEOUT: "2s",
      ALCOVE_DEFAULTS_MAX_SANDBOXES: "24",
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

/** Sandboxes with commands and files in them, for requests to find. */
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
    const ended = await call("POST", `/sandboxes/${id}/exec`, { command: "echo hello" });
    const started = await call("POST", `/sandboxes/${id}/execs`, { command: "cat" });
    execs[id] = [ended.exec_id, started.exec_id];
  }
  return { provider, sandboxes, ending, execs };
}

async function run(schemathesis, { url }) {
  const args = [
    ...["--config-file", path.join(root, "scripts", "generated-requests.toml"), "run"],
    `${url}/api/v1/openapi.json`,
    ...["--url", url, "--header", `X-API-Key: ${key}`, "--checks", "all", "--seed", seed],
    ...["--phases", "examples,coverage,fuzzing", "--max-examples", examples, "--request-timeout", "30"],
    ...["--suppress-health-check", "all", "--workers", "1", "--continue-on-failure", "--no-color"],
    ...excluded.flatMap((id) => ["--exclude-operation-id", id]),
  ];
  const child = spawn(schemathesis, args, {
    cwd: directory,
    stdio: ["ignore", "pipe", "inherit"],
    env: {
      ...process.env,
      SCHEMATHESIS_HOOKS: path.join(root, "scripts", "generated-requests.py"),
      GENERATED_REQUESTS_KNOWN: JSON.stringify(await known(url)),
      NO_PROXY: "127.0.0.1",
    },
  });
  let output = "";
  child.stdout.on("data", (chunk) => {
    output += chunk;
    process.stdout.write(chunk);
  });
  let late = false;
  const timer = setTimeout(() => {
    late = true;
    child.kill("SIGINT");
  }, seconds * 1_000);
  const status = await new Promise((resolve) => child.once("exit", (code) => resolve(code ?? 1)));
  clearTimeout(timer);
  if (!late) return status;
  const failed = /= (FAILURES|ERRORS) =/.test(output);
  console.log(
    `generated-requests: stopped after ${seconds} s, ${failed ? "with failures" : "nothing found so far"}`,
  );
  return failed ? 1 : 0;
}
