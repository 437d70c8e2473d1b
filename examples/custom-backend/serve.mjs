// The HTTP of both backends: the key, the parts of a path, JSON, and refusals by their status.
import { createHash, timingSafeEqual } from "node:crypto";
import { createServer } from "node:http";

const digest = (text) => createHash("sha256").update(text).digest();
const authorization = digest(`Bearer ${process.env.BACKEND_KEY ?? ""}`);
export const refusal = (status, message) => Object.assign(new Error(message), { status });
/** What the first of some events tells; nothing listens to the others any more. */
export const either = (emitter, ...events) =>
  new Promise((resolve) => {
    const first = (told) => {
      for (const event of events) emitter.off(event, first);
      resolve(told);
    };
    for (const event of events) emitter.on(event, first);
  });

/** Of a command, `child`, with `exit` once it has ended. What it took already is dropped. */
export async function writeInput(exec, { offset, close }, request) {
  if (exec.exit) throw refusal(409, "the command has ended");
  const { stdin } = exec.child;
  let at = Number(offset);
  for await (const part of request) {
    const fresh = part.subarray(Math.max(0, exec.taken - at));
    at += part.length;
    exec.taken = Math.max(exec.taken, at);
    if (!stdin.write(fresh)) await either(stdin, "drain", "close");
  }
  if (close) stdin.end();
}

/** @param sandboxes by id; each has its commands by id in `execs`. @param routeOf answers the handler of a method and path. */
export function serve({ port, sandboxes, routeOf, stop }) {
  async function answer(request, response) {
    if (!timingSafeEqual(digest(request.headers.authorization ?? ""), authorization))
      throw refusal(401, "key");
    const { pathname, searchParams } = new URL(request.url, "http://backend");
    const steps = pathname.slice(1).split("/").map(decodeURIComponent);
    const [, id, area, execId] = steps;
    const sandbox = sandboxes.get(id);
    const exec = area === "execs" ? sandbox?.execs.get(execId) : undefined;
    const route = routeOf(request.method, steps);
    if (!route || (id && !sandbox) || (area === "execs" && execId && !exec)) throw refusal(404, "not found");
    const isJson = request.headers["content-type"] === "application/json";
    const body = isJson ? JSON.parse(Buffer.concat(await request.toArray()).toString()) : undefined;
    const query = Object.fromEntries(searchParams);
    // Of a sandbox, a command, a folder or a file: what is asked for is never passed over.
    if (body?.user ?? query.user) throw refusal(400, "there is one user; leave user out");
    const result = await route({ request, response, sandbox, exec, body, query });
    if (!response.headersSent) response.end(JSON.stringify(result ?? {}));
  }
  const server = createServer((request, response) =>
    answer(request, response).catch((error) => {
      if (response.headersSent) response.destroy();
      else response.writeHead(error.status ?? 500).end(JSON.stringify({ error: error.message }));
    }),
  );
  server.listen(port, "127.0.0.1", () => console.log(`listening on ${server.address().port}`));
  process.on("SIGTERM", () => stop().finally(() => process.exit()));
}
