// A backend of provider "custom" (docs/custom-provider.md): sandboxes are folders, commands run in bubblewrap.
// Linux with bwrap. BACKEND_KEY=secret node backend.mjs [port] [folder]
import { spawn } from "node:child_process";
import { mkdirSync, mkdtempSync, readFileSync, rmSync } from "node:fs";
import { constants, tmpdir } from "node:os";
import path from "node:path";
import { fileURLToPath } from "node:url";
import { either, refusal, serve, writeInput } from "./serve.mjs";

const fileCalls = fileURLToPath(new URL("files.mjs", import.meta.url));
const sandboxes = new Map();
const root = process.argv[3] ?? mkdtempSync(path.join(tmpdir(), "backend-"));
const ignore = () => undefined;

const describe = ({ id, image, labels }) => ({ id, image, labels, state: "running" });
async function make({ id, image, env, network, workdir, expires_in_ms, labels }) {
  if (sandboxes.has(id)) return describe(sandboxes.get(id));
  if (image !== "host") throw refusal(404, `no image ${image}; there is "host"`);
  if (!/^[\w-]+$/.test(id)) throw refusal(400, "the id is no name");
  const folder = path.join(root, id);
  for (const each of ["tmp", "workspace"]) mkdirSync(path.join(folder, each), { recursive: true });
  const sandbox = { id, image, labels, env, network, folder, execs: new Map(), live: new Set() };
  sandboxes.set(id, sandbox);
  expire(sandbox, expires_in_ms);
  if (workdir) await files(sandbox, { call: "mkdir", path: workdir, parents: true });
  return describe(sandbox);
}
function expire(sandbox, ms) {
  clearTimeout(sandbox.timer);
  if (ms !== null) sandbox.timer = setTimeout(() => end(sandbox), Math.min(ms, 2 ** 31 - 1));
}
async function end(sandbox) {
  clearTimeout(sandbox.timer);
  sandboxes.delete(sandbox.id);
  for (const exec of sandbox.execs.values()) exec.cut ||= !exec.exit;
  await Promise.all([...sandbox.live].map(kill));
  rmSync(sandbox.folder, { recursive: true, force: true });
}

const bare =
  "--ro-bind /usr /usr --symlink usr/bin /bin --symlink usr/sbin /sbin --symlink usr/lib /lib --symlink usr/lib64 /lib64 " +
  `--ro-bind ${process.execPath} /run/node --ro-bind ${fileCalls} /run/files.mjs --proc /proc --dev /dev ` +
  "--die-with-parent --unshare-all --info-fd 4 --clearenv --chdir /";
/** A program in a sandbox, in a process namespace of its own: killing bwrap leaves nothing of it. */
function run({ folder, env, network, live }, argv, own = {}) {
  const mounts = ["tmp", "workspace"].flatMap((each) => ["--bind", path.join(folder, each), `/${each}`]);
  const variables = { PATH: "/usr/local/bin:/usr/bin:/bin", HOME: "/workspace", ...env, ...own };
  const set = Object.entries(variables).flatMap(([name, value]) => ["--setenv", name, value]);
  const net = network === "outbound" ? ["--share-net"] : [];
  const stdio = ["pipe", "pipe", "pipe", "pipe", "pipe"];
  const options = [...bare.split(" "), ...net, ...mounts, ...set, "--"];
  const child = spawn("bwrap", [...options, ...argv], { stdio, env: {} });
  live.add(child);
  child.closed = new Promise((resolve) => child.on("close", (code) => resolve(code ?? 137)));
  child.closed.then(() => live.delete(child));
  for (const each of [child, child.stdin, child.stdio[3]]) each.on("error", ignore);
  return child;
}
async function kill(child) {
  // Whatever it wrote is read now, also where it ended by itself: it is closed only then.
  child.isOver = true;
  child.kill("SIGKILL");
  for (const stream of [child.stdout, child.stderr]) stream.resume();
  await child.closed;
}

async function files(sandbox, request, { input, output } = {}) {
  const child = run(sandbox, ["/run/node", "/run/files.mjs", JSON.stringify(request)], { NODE_OPTIONS: "" });
  child.stderr.resume();
  const parts = [];
  if (output) output.on("close", () => child.kill("SIGKILL"));
  child.stdout.on("data", (part) =>
    output ? output.write(part) || wait(child.stdout, output) : parts.push(part),
  );
  input?.on("close", () => {
    child.stdio[3].end(input.complete ? "whole" : "cut");
    child.stdin.end();
  });
  if (input) input.pipe(child.stdin, { end: false });
  else child.stdin.end();
  const code = await child.closed;
  if (code !== 0)
    throw refusal([40, 44, 49].includes(code) ? 360 + code : 500, `${request.call} ended with ${code}`);
  return output ? output.end() : JSON.parse(Buffer.concat(parts).toString());
}
/** Who reads slowly slows down who writes; who has left slows down nobody. */
async function wait(stream, response) {
  if (response.destroyed) return;
  stream.pause();
  await either(response, "drain", "close");
  stream.resume();
}

// Says on fd 3 what keeps a program from being started, or that it is.
const starter = `cd -- "$1" 2>/dev/null || { echo workdir >&3; exit 1; }; shift; f=$(command -v -- "$1")
  if test -z "$f"; then echo missing >&3; exit 127; fi
  case $f in /*) if test -d "$f" -o ! -x "$f"; then echo denied >&3; exit 126; fi ;; esac
  echo start >&3; exec "$@" 3>&- 4>&-`;
const startErrors = { missing: "no such file or directory", denied: "permission denied" };
async function start(sandbox, { exec_id: id, argv, env, workdir, stdin, timeout_ms }) {
  if (sandbox.execs.has(id)) throw refusal(409, `exec ${id} exists`);
  const child = run(sandbox, ["setsid", "/bin/sh", "-c", starter, "sh", workdir, ...argv], env);
  const exec = { child, lines: [], offset: 0, sent: 0, taken: 0, wake: ignore };
  sandbox.execs.set(id, exec);
  for (const type of ["stdout", "stderr"]) child[type].on("data", (data) => push(exec, type, data));
  const [said, info] = await Promise.all([3, 4].map((fd) => either(child.stdio[fd], "data", "end")));
  const state = String(said ?? "").trim();
  if (state !== "start" && !startErrors[state]) {
    sandbox.execs.delete(id);
    throw refusal(state === "workdir" ? 400 : 500, `the command cannot be started in ${workdir}`);
  }
  exec.pid = Number(/\d+/.exec(info)?.[0]);
  if (!stdin) child.stdin.end();
  const timer = setTimeout(() => kill(child), timeout_ms);
  child.closed.then((code) => {
    clearTimeout(timer);
    // bubblewrap tells signals as shells do.
    const [signal] = Object.entries(constants.signals).find(([, number]) => number === code - 128) ?? [];
    const error = startErrors[state] && `exec "${argv[0]}": ${startErrors[state]}`;
    exec.exit = { type: "exit", exit_code: code, signal, start_error: error };
    exec.wake();
  });
  return exec;
}
/** Output waits for its reader, also for one that is to come back; the last of what was sent can be sent again. */
const keptOutput = 1_048_576;
function push(exec, type, data) {
  exec.lines.push({ type, data, offset: exec.offset });
  exec.offset += data.length;
  exec.wake();
  hold(exec);
}
function hold({ child, lines, offset, sent }) {
  const waits = offset - sent > keptOutput && !child.isOver;
  for (const each of [child.stdout, child.stderr]) waits ? each.pause() : each.resume();
  while (lines[0]?.offset + lines[0]?.data.length < sent - keptOutput) lines.shift();
}
async function follow(exec, from, response) {
  const send = (event) => response.write(`${JSON.stringify(event)}\n`);
  response.writeHead(200, { "content-type": "application/x-ndjson" });
  send({ type: "start", pid: exec.pid });
  const ping = setInterval(() => send({ type: "ping" }), 10_000);
  exec.sent = from;
  const left = either(response, "close");
  while (!response.destroyed && !response.writableEnded) {
    const line = exec.lines.find(({ offset, data }) => offset + data.length > exec.sent);
    if (line) {
      const data = line.data.subarray(Math.max(0, exec.sent - line.offset)).toString("base64");
      exec.sent = line.offset + line.data.length;
      if (!send({ type: line.type, data })) await either(response, "drain", "close");
      hold(exec);
    } else if (exec.cut) response.destroy();
    else if (exec.exit) response.end(`${JSON.stringify(exec.exit)}\n`);
    else await Promise.race([new Promise((wake) => Object.assign(exec, { wake })), left]);
  }
  clearInterval(ping);
}
function signal(exec, number) {
  if (exec.exit) throw refusal(409, "the command has ended");
  // The command is the child of the first process of its namespace, and leads its group.
  const [child] = readFileSync(`/proc/${exec.pid}/task/${exec.pid}/children`, "utf8").split(" ");
  process.kill(-Number(child), number);
}

const capabilities = ["files", "reattach", "signals", "process_tree", "expiry"];
const isOf = (installation) => (sandbox) => sandbox.labels["alcove.installation"] === installation;
/** By method, what it is in the sandbox, and what of that. */
const routes = {
  "GET health": () => ({ status: "ok", capabilities }),
  "POST sandboxes": ({ body }) => make(body),
  "GET sandboxes": ({ query }) => ({
    sandboxes: [...sandboxes.values()].filter(isOf(query.installation)).map(describe),
  }),
  "GET sandbox": ({ sandbox }) => describe(sandbox),
  "DELETE sandbox": ({ sandbox }) => end(sandbox),
  "PUT expiry": ({ sandbox, body }) => expire(sandbox, body.expires_in_ms),
  "POST execs": async ({ sandbox, body, response }) => follow(await start(sandbox, body), 0, response),
  "GET exec": ({ exec, query, response }) => follow(exec, Number(query.from), response),
  "DELETE exec": ({ exec }) => kill(exec.child),
  "POST stdin": ({ exec, query, request }) => writeInput(exec, query, request),
  "POST signal": ({ exec, body }) => signal(exec, body.signal),
  "GET files": ({ sandbox, query, response }) =>
    files(sandbox, { call: "read", ...query }, { output: response }),
  "PUT files": ({ sandbox, query, request }) =>
    files(sandbox, { call: "write", ...query }, { input: request }),
};
function routeOf(method, [area, id, part, name, act]) {
  if (part === "files" && (name || method === "DELETE"))
    return ({ sandbox, query, body }) => files(sandbox, { call: name ?? "remove", ...query, ...body });
  const what = part === "execs" && name ? (act ?? "exec") : (part ?? (id ? "sandbox" : area));
  return routes[`${method} ${what}`];
}
const stop = () => Promise.all([...sandboxes.values()].map(end));
serve({ port: Number(process.argv[2] ?? 8090), sandboxes, routeOf, stop });
