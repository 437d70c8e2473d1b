import { mkdtemp, rename, rm, stat, symlink, writeFile } from "node:fs/promises";
import { createServer, type Server } from "node:net";
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
