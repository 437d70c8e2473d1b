// The least that is a backend of provider "custom" (docs/custom-provider.md): the calls that every backend has.
// Linux with bwrap. BACKEND_KEY=secret node minimal.mjs [port] [folder]
import { spawn } from "node:child_process";
import { mkdirSync, mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import path from "node:path";
import { either, refusal, serve, writeInput } from "./serve.mjs";

const sandboxes = new Map();
const root = process.argv[3] ?? mkdtempSync(path.join(tmpdir(), "backend-"));

const describe = ({ id, image, labels }) => ({ id, image, labels, state: "running" });
function make({ id, image, env, workdir, labels }) {
  if (sandboxes.has(id)) return describe(sandboxes.get(id));
  if (image !== "host") throw refusal(404, `no image ${image}; there is "host"`);
  if (!/^[\w-]+$/.test(id)) throw refusal(400, "the id is no name");
  if (workdir && workdir !== "/workspace") throw refusal(400, "commands start in /workspace");
  mkdirSync(path.join(root, id));
  sandboxes.set(id, { id, image, labels, env, folder: path.join(root, id), execs: new Map() });
  return describe(sandboxes.get(id));
}
async function end(sandbox) {
  sandboxes.delete(sandbox.id);
  await Promise.all([...sandbox.execs.values()].map(kill));
  rmSync(sandbox.folder, { recursive: true, force: true });
}
async function kill(exec) {
  exec.child.kill("SIGKILL");
  for (const stream of [exec.child.stdout, exec.child.stderr]) stream.resume();
  await exec.closed;
}

// Says on fd 3 what keeps a program from being started, or that it is.
const starter = `cd -- "$1" 2>/dev/null || { echo workdir >&3; exit 1; }; shift
  command -v -- "$1" >/dev/null || { echo missing >&3; exit 127; }; echo start >&3; exec "$@" 3>&-`;
async function start(sandbox, { exec_id: id, argv, env, workdir, stdin, timeout_ms }, response) {
  if (sandbox.execs.has(id)) throw refusal(409, `exec ${id} exists`);
  const root =
    "--ro-bind /usr /usr --symlink usr/bin /bin --symlink usr/sbin /sbin --symlink usr/lib /lib --symlink usr/lib64 /lib64 " +
    "--proc /proc --dev /dev --tmpfs /tmp --die-with-parent --unshare-all --clearenv";
  const variables = { PATH: "/usr/local/bin:/usr/bin:/bin", ...sandbox.env, ...env };
  const set = Object.entries(variables).flatMap(([name, value]) => ["--setenv", name, value]);
  const command = ["/bin/sh", "-c", starter, "sh", workdir, ...argv];
  const mounts = ["--bind", sandbox.folder, "/workspace", "--chdir", "/"];
  const child = spawn("bwrap", [...root.split(" "), ...set, ...mounts, "--", ...command], {
    stdio: ["pipe", "pipe", "pipe", "pipe"],
    env: {},
  });
  const exec = { child, taken: 0 };
  sandbox.execs.set(id, exec);
  child.stdin.on("error", () => undefined);
  const send = (event) => response.write(`${JSON.stringify(event)}\n`);
  const held = [];
  let isStarted = false;
  for (const type of ["stdout", "stderr"])
    child[type].on("data", async (data) => {
      const event = { type, data: data.toString("base64") };
      if (!isStarted) held.push(event);
      else if (!send(event) && !response.destroyed) {
        // Who reads slowly slows the command down.
        child[type].pause();
        await either(response, "drain", "close");
        child[type].resume();
      }
    });
  exec.closed = new Promise((resolve) => child.once("close", (code) => resolve(code ?? 137)));
  const state = String((await either(child.stdio[3], "data", "end")) ?? "").trim();
  if (state !== "start" && state !== "missing") {
    sandbox.execs.delete(id);
    throw refusal(state === "workdir" ? 400 : 500, `the command cannot be started in ${workdir}`);
  }
  if (!stdin) child.stdin.end();
  response.writeHead(200, { "content-type": "application/x-ndjson" });
  for (const event of [{ type: "start", pid: child.pid }, ...held]) send(event);
  isStarted = true;
  const ping = setInterval(() => send({ type: "ping" }), 10_000);
  const timer = setTimeout(() => kill(exec), timeout_ms);
  const code = await exec.closed;
  clearInterval(ping);
  clearTimeout(timer);
  exec.exit = true;
  if (!sandboxes.has(sandbox.id)) return response.destroy();
  const missing = `exec "${argv[0]}": no such file or directory`;
  send({ type: "exit", exit_code: code, ...(state === "missing" ? { start_error: missing } : {}) });
  response.end();
}
const isOf = (installation) => (sandbox) => sandbox.labels["alcove.installation"] === installation;
/** By method and what it is of. */
const routes = {
  "GET health": () => ({ status: "ok", capabilities: [] }),
  "POST sandboxes": ({ body }) => make(body),
  "GET sandboxes": ({ query }) => ({
    sandboxes: [...sandboxes.values()].filter(isOf(query.installation)).map(describe),
  }),
  "GET sandbox": ({ sandbox }) => describe(sandbox),
  "DELETE sandbox": ({ sandbox }) => end(sandbox),
  "POST execs": ({ sandbox, body, response }) => start(sandbox, body, response),
  "DELETE exec": ({ exec }) => kill(exec),
  "POST stdin": ({ exec, query, request }) => writeInput(exec, query, request),
};

function routeOf(method, [area, id, part, name, act]) {
  return routes[`${method} ${act ?? (name ? "exec" : (part ?? (id ? "sandbox" : area)))}`];
}
const stop = () => Promise.all([...sandboxes.values()].map(end));
serve({ port: Number(process.argv[2] ?? 8090), sandboxes, routeOf, stop });
