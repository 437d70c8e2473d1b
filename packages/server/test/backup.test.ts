import { copyFile, mkdtemp, readdir, rm, stat, symlink, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import path from "node:path";
import { DatabaseSync } from "node:sqlite";
import { afterEach, beforeEach, expect, test } from "vitest";
import { backup } from "../src/backup.ts";
import { loadConfig } from "../src/config/load.ts";
import { type RunningService, serve } from "../src/main.ts";
import { silentLogger } from "../src/platform/logger.ts";
import { TestClient } from "./support/http.ts";

let home: string;
let service: RunningService | undefined;
beforeEach(async () => {
  home = await mkdtemp(path.join(tmpdir(), "alcove-backup-"));
});
afterEach(async () => {
  await service?.close();
  service = undefined;
  await rm(home, { recursive: true, force: true });
});

const config = (dataDir: string) =>
  loadConfig({
    cwd: home,
    env: {
      ALCOVE_DATA_DIR: path.join(home, dataDir),
      ALCOVE_SERVER_PORT: "0",
      ALCOVE_PROVIDERS_DEFAULT: "mock",
      ALCOVE_PROVIDERS_NATIVE_ENABLED: "false",
      ALCOVE_PROVIDERS_DOCKER_ENABLED: "false",
    },
  });

async function start(dataDir: string): Promise<TestClient> {
  service = await serve({ config: config(dataDir), logger: silentLogger });
  await service.ready;
  return new TestClient(service.url);
}

const names = async (client: TestClient): Promise<string[]> =>
  (await client.call("GET", "/api/v1/templates")).json.map(({ name }: { name: string }) => name);

test("a service that runs and writes is backed up as it was at one instant, and restored in place", async () => {
  const client = await start("data");
  expect((await client.call("POST", "/api/v1/templates", { name: "before", image: "mock" })).status).toBe(
    201,
  );
  let writing = true;
  let written = 0;
  const writer = (async () => {
    while (writing) {
      const body = { name: `during-${written}`, image: "mock" };
      expect((await client.call("POST", "/api/v1/templates", body)).status).toBe(201);
      written += 1;
    }
  })();
  const folders = [0, 1, 2, 3, 4].map((index) => path.join(home, `backup-${index}`));
  for (const folder of folders) await backup({ config: config("data"), folder });
  writing = false;
  await writer;
  expect(written).toBeGreaterThan(0);
  await client.call("POST", "/api/v1/templates", { name: "after", image: "mock" });

  const last = folders.at(-1) ?? "";
  expect((await readdir(last)).sort()).toEqual(["alcove.db", "installation.json"]);
  expect((await stat(last)).mode & 0o777).toBe(0o700);
  expect((await stat(path.join(last, "alcove.db"))).mode & 0o777).toBe(0o600);
  for (const folder of folders) {
    using db = new DatabaseSync(path.join(folder, "alcove.db"), { readOnly: true });
    expect(db.prepare("PRAGMA integrity_check").get()).toEqual({ integrity_check: "ok" });
    const found = db.prepare("SELECT name FROM templates WHERE name LIKE 'during-%'").all();
    // One instant: what came earlier is in it whenever something later is.
    expect(found.length).toBeLessThanOrEqual(written);
    expect(found.map(({ name }) => name).sort()).toEqual(found.map((_, index) => `during-${index}`).sort());
  }

  await service?.close();
  for (const name of (await readdir(path.join(home, "data"))).filter((file) => file.startsWith("alcove.db")))
    await rm(path.join(home, "data", name));
  await copyFile(path.join(last, "alcove.db"), path.join(home, "data", "alcove.db"));
  const restored = await names(await start("data"));
  expect(restored).toContain("before");
  expect(restored).not.toContain("after");
});

test("a backup wants a folder that is there, outside the data directory, and its time is told", async () => {
  const client = await start("data");
  const at = async () => {
    const { json } = await client.call("GET", "/api/v1/diagnostics");
    const { text } = await client.call("GET", "/api/v1/metrics/prometheus");
    return [json.store.last_backup, /^service_last_backup_timestamp_seconds (.*)$/m.exec(text)?.[1]];
  };
  const nowhere = path.join(home, "nowhere", "deep");
  const make = (folder: string) =>
    backup({ config: config("data"), folder, now: new Date(1_700_000_000_000) });
  await expect(make(path.join(nowhere, "one"))).rejects.toThrow(
    `there is no folder ${nowhere} to make the backup in: install -d -m 0700 ${nowhere}`,
  );
  await symlink(path.join(home, "data"), path.join(home, "link"));
  for (const place of ["data", "link"])
    await expect(make(path.join(home, place, "copy"))).rejects.toThrow("is in the data directory");
  expect(await at()).toEqual([undefined, "0"]);
  expect(await make(path.join(home, "..data"))).toEqual({ notNoted: undefined });
  // Right after it: who makes one looks whether it counts.
  const { json: now } = await client.call("GET", "/api/v1/diagnostics");
  expect(now.store.last_backup).toBe("2023-11-14T22:13:20.000Z");
  await service?.close();
  const again = await start("data");
  const { text } = await again.call("GET", "/api/v1/metrics/prometheus");
  expect(text).toMatch(/^service_last_backup_timestamp_seconds 1700000000$/m);
});

test("a backup replaces nothing, and one that fails leaves nothing", async () => {
  await start("data");
  const folder = path.join(home, "backup");
  await backup({ config: config("data"), folder });
  await expect(backup({ config: config("data"), folder })).rejects.toThrow(`${folder} is there already`);
  await expect(backup({ config: config("elsewhere"), folder: path.join(home, "other") })).rejects.toThrow(
    /there is no database .*elsewhere/,
  );
  await service?.close();
  service = undefined;
  await writeFile(path.join(home, "data", "alcove.db"), "no database");
  await expect(backup({ config: config("data"), folder: path.join(home, "broken") })).rejects.toThrow();
  expect((await readdir(home)).sort()).toEqual(["backup", "data"]);
});
