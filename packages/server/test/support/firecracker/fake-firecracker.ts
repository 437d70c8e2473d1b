/**
 * A strict stand-in for the program `firecracker`, one process for each machine: it refuses what the published API does not
 * have, in the wrong order or of another type, and runs a guest that is a process or QEMU's. As its own program:
 *     fake-firecracker.ts BEHAVIOUR.json --api-sock PATH --id ID [--level LEVEL]
 */
import { existsSync } from "node:fs";
import { createServer } from "node:http";
import { setTimeout as delay } from "node:timers/promises";
import { readBehaviour } from "./behaviour.ts";
import { FakeMachine } from "./fake-machine.ts";

/** As the program's own bound. */
const largestBody = 51_200;

function fail(message: string, code: number): never {
  process.stderr.write(`Error: ${message}\n`);
  process.exit(code);
}

const [behaviourPath = "", ...words] = process.argv.slice(2);
if (words.includes("--version")) {
  process.stdout.write("Firecracker v1.17.0-dev\n\n(a fake for tests)\n");
  process.exit(0);
}
const options = new Map<string, string>();
const jailUid = process.env.FAKE_JAIL_UID;
for (let at = 0; at < words.length; at += 2) {
  let [name = "", value] = [words[at], words[at + 1]];
  const joined = /^(--(?:id|start-time-us|start-time-cpu-us))=(.*)$/.exec(name);
  if (joined !== null) {
    // As the jailer gives them.
    [, name = "", value] = joined;
    at -= 1;
    if (name !== "--id") continue;
  }
  if (!["--api-sock", "--id", "--level"].includes(name)) fail(`unknown argument ${name}`, 153);
  if (value === undefined || options.has(name)) fail(`argument ${name} wants one value`, 153);
  options.set(name, value);
}
const socket = options.get("--api-sock") ?? fail("--api-sock is missing", 153);
const id = options.get("--id") ?? "anonymous-instance";
if (!/^[A-Za-z0-9-]{1,64}$/.test(id)) fail(`Invalid instance ID ${id}`, 1);
if (existsSync(socket))
  fail(`Failed to open the API socket at: ${socket}. Check that it is not already used.`, 1);

const behaviour = readBehaviour(behaviourPath);
if (behaviour.refusesToRun !== undefined) fail(behaviour.refusesToRun, 1);
if (behaviour.opensAfterMs !== undefined) await delay(behaviour.opensAfterMs);

let leaving = false;
const leave = (code: number) => {
  if (leaving) return;
  leaving = true;
  void machine.end().finally(() => process.exit(code));
};
const machine = new FakeMachine({
  id,
  jailUid: jailUid === undefined ? undefined : Number(jailUid),
  behaviourPath,
  // Full and non-blocking, the console loses what is written to it.
  say: (text) => process.stdout.write(text),
  onEnd: () => leave(0),
});
process.stdout.on("error", () => undefined);
process.on("SIGTERM", () => leave(0));

const server = createServer((request, response) => {
  const parts: Buffer[] = [];
  request.on("data", (part: Buffer) => parts.push(part));
  request.on("end", () => {
    const [method = "", path = ""] = [request.method, request.url];
    const { hangs = [], dies = [], answers = {} } = machine.behaviour();
    const name = `${method} ${path}`;
    if (hangs.includes(name)) return;
    if (dies.includes(name)) process.exit(148);
    const forced = answers[name];
    if (forced !== undefined) return response.writeHead(forced.status).end(forced.text);
    if (request.headers["transfer-encoding"] !== undefined) return response.writeHead(400).end();
    const text = Buffer.concat(parts);
    if (text.length > largestBody) return response.writeHead(413).end();
    void machine.answer(method, path, text.toString("utf8")).then(({ status, json }) => {
      const body = json === undefined ? "" : JSON.stringify(json);
      response.writeHead(status, {
        Server: "Firecracker API",
        ...(body === "" ? {} : { "Content-Type": "application/json" }),
      });
      response.end(body);
    });
  });
});
server.listen(socket);
