import { execFileSync } from "node:child_process";
import {
  closeSync,
  mkdtempSync,
  openSync,
  readdirSync,
  readFileSync,
  rmSync,
  writeFileSync,
  writeSync,
} from "node:fs";
import { tmpdir } from "node:os";
import path from "node:path";
import { DatabaseSync } from "node:sqlite";
import { Writable } from "node:stream";
import pino from "pino";
import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { backup } from "../src/backup.ts";
import { loadConfig } from "../src/config/load.ts";
import { type RunningService, serve } from "../src/main.ts";
import { silentLogger } from "../src/platform/logger.ts";
import { Unavailable } from "../src/ports/errors.ts";
import { SqliteStore } from "../src/stores/sqlite/index.ts";
import { TestClient } from "./support/http.ts";
import { describeWith } from "./support/requirements.ts";

const api = "/api/v1";
const pageBytes = 4_096;
const noFields = {
  provider: undefined,
  memoryMb: undefined,
  vcpus: undefined,
  ttlMs: undefined,
  metadata: undefined,
  env: undefined,
  user: undefined,
  workdir: undefined,
  network: undefined,
};
const toStrangers = /^the database is damaged; the log names the file/;

let home: string;
let file: string;
beforeEach(() => {
  home = mkdtempSync(path.join(tmpdir(), "alcove-damaged-"));
  file = path.join(home, "alcove.db");
});
afterEach(() => rmSync(home, { recursive: true }));

const config = () =>
  loadConfig({
    cwd: home,
    env: {
      ALCOVE_DATA_DIR: home,
      ALCOVE_SERVER_PORT: "0",
      ALCOVE_PROVIDERS_DEFAULT: "mock",
      ALCOVE_PROVIDERS_NATIVE_ENABLED: "false",
      ALCOVE_PROVIDERS_DOCKER_ENABLED: "false",
      ALCOVE_PROVIDERS_PROOT_ENABLED: "false",
    },
  });

/** With a row or two in most tables. */
async function aDatabase(): Promise<string[]> {
  const service = await serve({ config: config(), logger: silentLogger });
  await service.ready;
  const client = new TestClient(service.url);
  await client.spawn({ owner_id: "ann" });
  await client.call("PUT", `${api}/quotas/ann`, { max_sandboxes: 50 });
  await client.call("POST", `${api}/templates`, { name: "t", image: "mock" });
  await client.call("POST", `${api}/admin/keys`, { name: "k" });
  await service.close();
  using db = new DatabaseSync(file);
  const tables = db.prepare("SELECT name FROM sqlite_schema WHERE type = 'table'").all();
  return tables.map(({ name }) => String(name));
}

/** Writes over the first page of a table, and tells nobody. */
function damage(table: string): void {
  using db = new DatabaseSync(file);
  damagePage(Number(db.prepare("SELECT rootpage FROM sqlite_schema WHERE name = ?").get(table)?.rootpage));
}

/** The service that wrote the file was closed: nothing of it is in the log beside it. */
function damagePage(page: number): void {
  const handle = openSync(file, "r+");
  writeSync(handle, Buffer.alloc(pageBytes, 0xa5), 0, pageBytes, (page - 1) * pageBytes);
  closeSync(handle);
}

/** Which page holds a text. */
function pageOf(text: string): number {
  return Math.floor(readFileSync(file).indexOf(`${text}{`) / pageBytes) + 1;
}

function logged() {
  const lines: string[] = [];
  const sink = new Writable({
    write: (line, _encoding, done) => {
      lines.push(JSON.parse(String(line)).msg);
      done();
    },
  });
  return { lines, logger: pino({ level: "warn" }, sink) };
}

const wayOut = () =>
  new RegExp(`^the database ${file} is damaged \\(.*malformed\\): put a backup in its place`);

test("whichever table is damaged, the start says what to do, or the service that it takes nothing new", async () => {
  const tables = await aDatabase();
  const whole = readFileSync(file);
  const [refused, started]: [string[], string[]] = [[], []];
  for (const table of tables) {
    for (const beside of ["-wal", "-shm"]) rmSync(file + beside, { force: true });
    writeFileSync(file, whole);
    damage(table);
    const { lines, logger } = logged();
    const service = await serve({ config: config(), logger }).catch((error: unknown) => error);
    if (service instanceof Error) {
      expect([table, service.message]).toEqual([table, expect.stringMatching(wayOut())]);
      refused.push(table);
      continue;
    }
    await using stack = new AsyncDisposableStack();
    const running = stack.adopt(service as RunningService, (it) => it.close());
    const client = new TestClient(running.url);
    const spawned = await client.call("POST", `${api}/sandboxes`, { owner_id: "ann" });
    expect([table, spawned.status, spawned.json.message]).toEqual([
      table,
      503,
      expect.stringMatching(toStrangers),
    ]);
    await vi.waitFor(async () =>
      expect(await client.call("GET", `${api}/ready`)).toMatchObject({
        status: 503,
        json: { message: expect.stringMatching(toStrangers) },
      }),
    );
    expect([table, lines]).toEqual([table, expect.arrayContaining([expect.stringMatching(wayOut())])]);
    const { status, json } = await client.call("GET", `${api}/diagnostics`);
    expect([table, status === 503 || json.store.healthy === false]).toEqual([table, true]);
    started.push(table);
  }
  expect(refused).toEqual(expect.arrayContaining(["sandboxes", "api_keys", "quotas"]));
  expect(started).toContain("in_use_by_all");
});

test("damage that is met while it runs is remembered: the store says so and takes nothing new", async () => {
  const template = (index: number) => ({
    name: `t${String(index).padStart(4, "0")}`,
    description: "x".repeat(400),
    image: "mock",
    createdAt: new Date(0),
    updatedAt: new Date(0),
    ...noFields,
  });
  {
    await using store = await SqliteStore.open({ path: file });
    for (let index = 0; index < 400; index += 1)
      await store.templates.create(template(index), { most: 1_000 });
  }
  damagePage(pageOf("t0200"));
  await using store = await SqliteStore.open({ path: file });
  const { lines, logger } = logged();
  await using watch = await store.watch({ logger });
  await store.ping();
  expect(watch.refusal).toBeUndefined();
  await expect(store.templates.list({ afterName: "t0150", limit: 200 })).rejects.toThrow(Unavailable);
  expect(watch.refusal).toMatch(toStrangers);
  await expect(store.ping()).rejects.toThrow(toStrangers);
  await expect(store.templates.create(template(500), { most: 1_000 })).rejects.toThrow(toStrangers);
  expect((await store.templates.get("t0000"))?.image).toBe("mock");
  await watch.look();
  expect(lines).toEqual([expect.stringMatching(wayOut())]);
});

test("a backup of a damaged database names it and the way out, and leaves no folder", async () => {
  await aDatabase();
  damage("templates");
  const folder = path.join(tmpdir(), `alcove-damaged-backup-${process.pid}`);
  await expect(backup({ config: config(), folder })).rejects.toThrow(wayOut());
  expect(readdirSync(tmpdir()).filter((name) => name.startsWith(path.basename(folder)))).toEqual([]);
});

await describeWith(["linux", "root"], "a backup to a full disk", () => {
  test("names the disk, what it takes and what is free", async () => {
    await aDatabase();
    const disk = mkdtempSync(path.join(tmpdir(), "alcove-full-backup-"));
    execFileSync("mount", ["-t", "tmpfs", "-o", "size=64k", "alcove-test", disk]);
    try {
      const made = backup({ config: config(), folder: path.join(disk, "today") });
      await expect(made).rejects.toThrow(
        new RegExp(
          `^the disk of ${disk} is full: a backup of ${file} takes up to [0-9.]+ MiB, and 0\\.\\d MiB are free`,
        ),
      );
      expect(readdirSync(disk)).toEqual([]);
    } finally {
      execFileSync("umount", ["--lazy", disk]);
      rmSync(disk, { recursive: true });
    }
  });
});
