import { mkdtemp, rename, rm, stat, symlink, writeFile } from "node:fs/promises";
import { createServer, type Server, Socket } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, expect, it } from "vitest";
import { storeAgent } from "./agent-store.ts";
import { pinnedUnixDialer, unixDialer } from "./dialers.ts";

let folder: string;
const servers: Server[] = [];
const options = () => ({ signal: AbortSignal.timeout(5_000) });

beforeEach(async () => {
  folder = await mkdtemp(join(tmpdir(), "alcove-dial-"));
});
afterEach(async () => {
  await Promise.all(servers.splice(0).map((server) => new Promise((resolve) => server.close(resolve))));
  await rm(folder, { recursive: true });
});

async function greeter(path: string, greeting: string): Promise<void> {
  const server = createServer((socket) => socket.end(greeting));
  servers.push(server);
  await new Promise<void>((resolve) => server.listen(path, resolve));
}

async function greeting(dial: ReturnType<typeof unixDialer>): Promise<string> {
  let text = "";
  for await (const part of await dial(options())) text += String(part);
  return text;
}

it("a pinned dialer keeps to the socket it found, whatever takes its name", async () => {
  const path = join(folder, "agent.sock");
  await greeter(path, "agent");
  await greeter(join(folder, "other.sock"), "impostor");
  const pinned = await pinnedUnixDialer(path);
  expect(await greeting(pinned.dial)).toBe("agent");
  await rename(join(folder, "other.sock"), path);
  expect(await greeting(unixDialer(path))).toBe("impostor");
  expect(await greeting(pinned.dial)).toBe("agent");
  await pinned.close();
});

it("a pinned dialer refuses links and what is no socket", async () => {
  await greeter(join(folder, "real.sock"), "agent");
  await symlink("real.sock", join(folder, "link.sock"));
  await writeFile(join(folder, "plain"), "");
  await expect(pinnedUnixDialer(join(folder, "link.sock"))).rejects.toThrow(/no socket/);
  await expect(pinnedUnixDialer(join(folder, "plain"))).rejects.toThrow(/no socket/);
  await expect(pinnedUnixDialer(join(folder, "none"))).rejects.toThrow(/ENOENT/);
});

it("an agent is stored once under its hash, executable, by many at once", async () => {
  const binary = join(folder, "built");
  await writeFile(binary, "an agent");
  const [first, ...others] = await Promise.all(
    Array.from({ length: 5 }, () => storeAgent({ dataDir: folder, binary })),
  );
  for (const other of others) expect(other).toEqual(first);
  const before = await stat(first?.path ?? "");
  expect(before.mode & 0o777).toBe(0o711);
  await storeAgent({ dataDir: folder, binary });
  expect((await stat(first?.path ?? "")).ino).toBe(before.ino);
  await expect(storeAgent({ dataDir: folder, binary: join(folder, "none") })).rejects.toThrow(/build-agent/);
});

/** A socket whose queue is full until `frees` says otherwise. */
function fullSocket(frees: (attempts: number) => boolean) {
  const counted = { attempts: 0, atOnce: 0, mostAtOnce: 0 };
  const connect = async () => {
    counted.attempts += 1;
    counted.atOnce += 1;
    counted.mostAtOnce = Math.max(counted.mostAtOnce, counted.atOnce);
    await new Promise((resolve) => setImmediate(resolve));
    counted.atOnce -= 1;
    if (!frees(counted.attempts)) throw Object.assign(new Error("connect EAGAIN"), { code: "EAGAIN" });
    return new Socket();
  };
  return { counted, dial: unixDialer(async () => "/nowhere", { connect }) };
}

it("many who dial an agent whose queue is full try it one at a time, and are refused together", async () => {
  const { counted, dial } = fullSocket(() => false);
  const first = Array.from({ length: 100 }, () => dial(options()).catch((error: unknown) => error));
  await new Promise((resolve) => setTimeout(resolve, 50));
  const before = counted.attempts;
  counted.mostAtOnce = 0;
  const others = Array.from({ length: 1_000 }, () => dial(options()).catch((error: unknown) => error));
  for (const error of await Promise.all([...first, ...others]))
    expect(error).toMatchObject({ code: "unavailable", retryAfterS: 1 });
  expect(counted.mostAtOnce).toBe(1);
  expect(counted.attempts - before).toBeLessThanOrEqual(50);
  expect(before).toBeGreaterThanOrEqual(100);
});

it("those who wait for a full queue are served in turn as it empties; who leaves is left out", async () => {
  const { counted, dial } = fullSocket((attempts) => attempts > 20);
  const left = new AbortController();
  const leaving = dial({ signal: left.signal }).catch((error: unknown) => String(error));
  const staying = Array.from({ length: 15 }, () => dial(options()));
  setImmediate(() => left.abort("left"));
  expect(await leaving).toBe("left");
  expect(await Promise.all(staying)).toHaveLength(15);
  expect(counted.attempts).toBeLessThanOrEqual(16 + 20 + 16);
});

it("who dials right after others were refused for a full queue is tried for as long as they were", async () => {
  const { counted, dial } = fullSocket((attempts) => attempts > 70);
  await expect(dial(options())).rejects.toMatchObject({ code: "unavailable" });
  expect(counted.attempts).toBeLessThan(60);
  expect(await dial(options())).toBeInstanceOf(Socket);
  expect(counted.attempts).toBe(71);
});
