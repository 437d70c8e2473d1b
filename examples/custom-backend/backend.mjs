// A backend of provider "custom" (docs/custom-provider.md): sandboxes are folders, commands run in bubblewrap.
// Linux with bwrap and GNU tools. BACKEND_KEY=secret node backend.mjs [port] [folder]
import { spawn } from "node:child_process";
import { createHash, timingSafeEqual } from "node:crypto";
import { mkdirSync, mkdtempSync, readFileSync, rmSync } from "node:fs";
import { createServer } from "node:http";
import { constants, tmpdir } from "node:os";
import path from "node:path";

const fileCalls = readFileSync(new URL("files.sh", import.meta.url), "utf8");
const sandboxes = new Map();
const root = process.argv[3] ?? mkdtempSync(path.join(tmpdir(), "backend-"));
const digest = (text) => createHash("sha256").update(text).digest();
const authorization = digest(`Bearer ${process.env.BACKEND_KEY ?? ""}`);
const refusal = (status, message) => Object.assign(new Error(message), { status });
const ignore = () => undefined;
const either = (emitter, ...events) =>
  new Promise((resolve) => events.reduce((each, event) => each.once(event, resolve), emitter));

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
  if (workdir) await files(sandbox, "mkdir", [workdir, "parents"]);
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

/** A program in a sandbox, in a process namespace of its own: killing bwrap leaves nothing of it. */
function run({ folder, env, network, live }, argv, own = {}) {
  const root =
    "--ro-bind /usr /usr --symlink usr/bin /bin --symlink usr/sbin /sbin --symlink usr/lib /lib " +
    "--symlink usr/lib64 /lib64 --proc /proc --dev /dev --die-with-parent --unshare-all --info-fd 4 --clearenv";
  const mounts = ["tmp", "workspace"].flatMap((each) => ["--bind", path.join(folder, each), `/${each}`]);
  const variables = { PATH: "/usr/local/bin:/usr/bin:/bin", HOME: "/workspace", ...env, ...own };
  const set = Object.entries(variables).flatMap(([name, value]) => ["--setenv", name, value]);
  const net = network === "outbound" ? ["--share-net"] : [];
  const child = spawn(
    "bwrap",
    [...root.split(" "), ...net, ...mounts, ...set, "--chdir", "/", "--", ...argv],
    {
      stdio: ["pipe", "pipe", "pipe", "pipe", "pipe"],
      env: {},
    },
  );
  live.add(child);
  child.closed = new Promise((resolve) => child.on("close", (code) => resolve(code ?? 137)));
  child.closed.then(() => live.delete(child));
  child.on("error", ignore).stdin.on("error", ignore);
  return child;
}
async function kill(child) {
  child.kill("SIGKILL");
  for (const stream of [child.stdout, child.stderr]) stream.resume();
  await child.closed;
}

const runFileCall = (sandbox, args) => run(sandbox, ["/bin/sh", "-c", fileCalls, "files", ...args]);
async function files(sandbox, call, args, input) {
  const child = runFileCall(sandbox, [call, ...args.map((each) => String(each ?? ""))]);
  const parts = [];
  child.stdout.on("data", (part) => parts.push(part));
  child.stderr.resume();
  // An upload that is broken off must not look like one that has ended.
  input?.on("close", () => input.complete || child.kill("SIGKILL")).pipe(child.stdin);
  if (!input) child.stdin.end();
  const code = await child.closed;
  if (code !== 0) throw refusal([40, 44, 49].includes(code) ? 360 + code : 500, `${call} ended with ${code}`);
  const types = {
    f: "file",
    d: "dir",
    l: "symlink",
    p: "fifo",
    s: "socket",
    c: "char_device",
    b: "block_device",
  };
  const fields = Buffer.concat(parts).toString().split("\0");
  return Array.from({ length: Math.floor(fields.length / 8) }, (_, index) => {
    const [type, size, mode, uid, gid, seconds, target, path] = fields.slice(index * 8);
    const figures = { size: +size, mode: Number.parseInt(mode, 8), uid: +uid, gid: +gid };
    return {
      path,
      type: types[type],
      ...figures,
      modified_ms: +seconds * 1000,
      symlink_target: target || null,
    };
  });
}
const octal = (mode) => mode && Number(mode).toString(8);

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
  for (const stream of ["stdout", "stderr"]) child[stream].on("data", (data) => push(exec, stream, data));
  const [said, info] = await Promise.all([3, 4].map((fd) => either(child.stdio[fd], "data", "end")));
  const state = String(said ?? "").trim();
  if (!["start", ...Object.keys(startErrors)].includes(state)) {
    sandbox.execs.delete(id);
    throw refusal(state === "workdir" ? 400 : 500, `the command cannot be started in ${workdir}`);
  }
  exec.pid = Number(/\d+/.exec(info)?.[0]);
  if (!stdin) child.stdin.end();
  const timer = setTimeout(() => kill(child), timeout_ms);
  child.closed.then((code) => {
    clearTimeout(timer);
    // bubblewrap tells signals as shells do.
    const signal = Object.keys(constants.signals).find((each) => constants.signals[each] === code - 128);
    const error = startErrors[state] && `exec "${argv[0]}": ${startErrors[state]}`;
    exec.exit = { type: "exit", exit_code: code, signal, start_error: error };
    exec.wake();
  });
  return exec;
}
/** Output waits for its reader, also for one that is to come back; the last of what was sent can be sent again. */
const keptOutput = 1_048_576;
function push(exec, stream, data) {
  exec.lines.push({ stream, data, offset: exec.offset });
  exec.offset += data.length;
  exec.wake();
  hold(exec);
}
function hold({ child, lines, offset, sent }) {
  for (const each of [child.stdout, child.stderr]) offset - sent > keptOutput ? each.pause() : each.resume();
  while (lines.length > 0 && lines[0].offset + lines[0].data.length < sent - keptOutput) lines.shift();
}
async function follow(exec, from, response) {
  const send = (event) => response.write(`${JSON.stringify(event)}\n`);
  response.writeHead(200, { "content-type": "application/x-ndjson" });
  send({ type: "start", pid: exec.pid });
  const ping = setInterval(() => send({ type: "ping" }), 10_000);
  exec.sent = from;
  while (!response.destroyed && !response.writableEnded) {
    const line = exec.lines.find(({ offset, data }) => offset + data.length > exec.sent);
    if (line) {
      const data = line.data.subarray(Math.max(0, exec.sent - line.offset));
      exec.sent = line.offset + line.data.length;
      if (!send({ type: line.stream, data: data.toString("base64") }))
        await either(response, "drain", "close");
      hold(exec);
    } else if (exec.cut) response.destroy();
    else if (exec.exit) response.end(`${JSON.stringify(exec.exit)}\n`);
    else
      await Promise.race([
        new Promise((resolve) => Object.assign(exec, { wake: resolve })),
        either(response, "close"),
      ]);
  }
  clearInterval(ping);
}
const running = (exec) => {
  if (exec.exit) throw refusal(409, "the command has ended");
  return exec.child;
};
async function writeInput(exec, { offset, close }, request) {
  const { stdin } = running(exec);
  let at = Number(offset);
  for await (const part of request) {
    const fresh = part.subarray(Math.max(0, exec.taken - at));
    at += part.length;
    exec.taken = Math.max(exec.taken, at);
    if (!stdin.write(fresh)) await either(stdin, "drain", "close");
  }
  if (close) stdin.end();
}
function signal(exec, number) {
  running(exec);
  // The command is the child of the first process of its namespace, and leads its group.
  const [child] = readFileSync(`/proc/${exec.pid}/task/${exec.pid}/children`, "utf8").split(" ");
  process.kill(-Number(child), number);
}
function read(sandbox, { path, offset, length }, response) {
  const child = runFileCall(sandbox, ["read", path, String(Number(offset) + 1), length]);
  child.stderr.resume();
  response.writeHead(200, { "content-type": "application/octet-stream" });
  response.on("close", () => child.kill("SIGKILL"));
  child.stdout.pipe(response);
}
async function write(sandbox, { path, mode }, request) {
  const part = `.part-${Math.random().toString(36).slice(2)}`;
  try {
    return { ...(await files(sandbox, "write", [path, octal(mode), part], request))[0], path };
  } catch (error) {
    await files(sandbox, "clean", [path, part]).catch(ignore);
    throw error;
  }
}

const ours = ({ installation }) =>
  [...sandboxes.values()].filter((each) => each.labels["alcove.installation"] === installation);
const routes = {
  "GET /health": () => ({
    status: "ok",
    capabilities: ["files", "reattach", "signals", "process_tree", "expiry"],
  }),
  "POST /sandboxes": ({ body }) => make(body),
  "GET /sandboxes": ({ query }) => ({ sandboxes: ours(query).map(describe) }),
  "GET /sandboxes/:id": ({ sandbox }) => describe(sandbox),
  "DELETE /sandboxes/:id": ({ sandbox }) => end(sandbox),
  "PUT /sandboxes/:id/expiry": ({ sandbox, body }) => expire(sandbox, body.expires_in_ms),
  "POST /sandboxes/:id/execs": async ({ sandbox, body, response }) =>
    follow(await start(sandbox, body), 0, response),
  "GET /sandboxes/:id/execs/:exec": ({ exec, query, response }) => follow(exec, Number(query.from), response),
  "DELETE /sandboxes/:id/execs/:exec": ({ exec }) => kill(exec.child),
  "POST /sandboxes/:id/execs/:exec/stdin": ({ exec, query, request }) => writeInput(exec, query, request),
  "POST /sandboxes/:id/execs/:exec/signal": ({ exec, body }) => signal(exec, body.signal),
  "GET /sandboxes/:id/files": ({ sandbox, query, response }) => read(sandbox, query, response),
  "PUT /sandboxes/:id/files": ({ sandbox, query, request }) => write(sandbox, query, request),
  "GET /sandboxes/:id/files/stat": async ({ sandbox, query }) =>
    (await files(sandbox, "stat", [query.path, query.follow]))[0],
  "GET /sandboxes/:id/files/list": async ({ sandbox, query: { path, depth } }) => ({
    entries: await files(sandbox, "list", [path, path.replace(/[\\%]/g, "$&$&"), depth === "0" ? "" : depth]),
  }),
  "DELETE /sandboxes/:id/files": ({ sandbox, query }) =>
    files(sandbox, "remove", [query.path, query.recursive]),
  "POST /sandboxes/:id/files/move": ({ sandbox, body }) => files(sandbox, "move", [body.from, body.to]),
  "POST /sandboxes/:id/files/chmod": ({ sandbox, body }) =>
    files(sandbox, "chmod", [body.path, octal(body.mode)]),
  "POST /sandboxes/:id/files/mkdir": async ({ sandbox, body }) =>
    (await files(sandbox, "mkdir", [body.path, body.parents || "", octal(body.mode)]))[0],
};

async function answer(request, response) {
  if (!timingSafeEqual(digest(request.headers.authorization ?? ""), authorization)) throw refusal(401, "key");
  const { pathname, searchParams } = new URL(request.url, "http://backend");
  const steps = pathname.split("/").map(decodeURIComponent);
  const [, , id, area, execId] = steps;
  if (id) steps[2] = ":id";
  if (area === "execs" && execId) steps[4] = ":exec";
  const sandbox = sandboxes.get(id);
  const exec = sandbox?.execs.get(execId);
  const route = routes[`${request.method} ${steps.join("/")}`];
  if (!route || (id && !sandbox) || (steps[4] === ":exec" && !exec)) throw refusal(404, "not found");
  const isJson = request.headers["content-type"] === "application/json";
  const body = isJson ? JSON.parse(Buffer.concat(await request.toArray()).toString()) : undefined;
  const query = Object.fromEntries(searchParams);
  const result = await route({ request, response, sandbox, exec, body, query });
  if (!response.headersSent) response.end(JSON.stringify(result ?? {}));
}
const server = createServer((request, response) =>
  answer(request, response).catch((error) => {
    if (response.headersSent) response.destroy();
    else response.writeHead(error.status ?? 500).end(JSON.stringify({ error: error.message }));
  }),
);
server.listen(Number(process.argv[2] ?? 8090), "127.0.0.1", () =>
  console.log(`listening on ${server.address().port}`),
);
process.on("SIGTERM", () => Promise.all([...sandboxes.values()].map(end)).finally(() => process.exit()));
