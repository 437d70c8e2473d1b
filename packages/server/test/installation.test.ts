import { existsSync, readFileSync } from "node:fs";
import { cp, glob, mkdir, mkdtemp, readdir, rm, symlink, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import path from "node:path";
import { DatabaseSync } from "node:sqlite";
import { Writable } from "node:stream";
import { pino } from "pino";
import { afterEach, beforeEach, describe, expect, test } from "vitest";
import { backup } from "../src/backup.ts";
import { loadConfig } from "../src/config/load.ts";
import { type RunningService, serve } from "../src/main.ts";
import { DataDirLocked } from "../src/platform/data-dir-lock.ts";
import { ForeignDataDir } from "../src/platform/installation.ts";
import { noteBackup } from "../src/platform/last-backup.ts";
import { silentLogger } from "../src/platform/logger.ts";
import { NotFound } from "../src/ports/index.ts";
import { purge, purgeInstance } from "../src/purge.ts";
import { restore } from "../src/restore.ts";
import { eventually, TestClient } from "./support/http.ts";
import { nativeMissing } from "./support/native-factory.ts";

const skip = await nativeMissing();

interface StartOptions {
  destroyOnExit?: boolean;
  pooled?: boolean;
  /** Outside the data directory. */
  database?: string;
}

describe.skipIf(skip !== undefined)(
  `a data directory${skip === undefined ? "" : ` (skipped: ${skip})`}`,
  () => {
    let home: string;
    const open = new Set<RunningService>();
    beforeEach(async () => {
      home = await mkdtemp(path.join(tmpdir(), "alcove-installation-"));
    });
    afterEach(async () => {
      for (const service of [...open]) await stop(service);
      await rm(home, { recursive: true, force: true });
    });

    const configOf = (
      dataDir: string,
      { destroyOnExit = false, pooled = false, database }: StartOptions = {},
    ) =>
      loadConfig({
        env: {
          ALCOVE_DATA_DIR: dataDir,
          ALCOVE_SERVER_PORT: "0",
          ALCOVE_PROVIDERS_DEFAULT: "native",
          ALCOVE_PROVIDERS_NATIVE_DISK_MB: "0",
          ALCOVE_PROVIDERS_NATIVE_MIN_FREE_MB: "0",
          ALCOVE_SERVER_DESTROY_ON_EXIT: String(destroyOnExit),
          ALCOVE_POOL_ENABLED: String(pooled),
          ...(database === undefined ? {} : { ALCOVE_DATABASE_PATH: database }),
        },
        cwd: home,
      });
    async function start(dataDir: string, options: StartOptions = {}) {
      const service = await serve({ config: configOf(dataDir, options), logger: silentLogger });
      open.add(service);
      await service.ready;
      return { service, client: new TestClient(service.url) };
    }
    function warnings() {
      const warned: { instance: string; sandboxes: number; msg: string }[] = [];
      const sink = new Writable({
        write: (line, _encoding, done) => {
          warned.push(JSON.parse(String(line)));
          done();
        },
      });
      return { warned, logger: pino({ level: "warn" }, sink) };
    }
    async function stop(service: RunningService) {
      open.delete(service);
      await service.close();
    }
    /** The installation's own groups, which hold those of its sandboxes. */
    async function groupsOf(dataDir: string): Promise<string[]> {
      const { id } = JSON.parse(readFileSync(path.join(dataDir, "installation.json"), "utf8"));
      const found: string[] = [];
      for await (const group of glob(`/sys/fs/cgroup/{,*/}alcove-${id.slice(0, 12)}`)) found.push(group);
      return found;
    }
    const stateOf = async (client: TestClient, id: string) =>
      (await client.call("GET", `/api/v1/sandboxes/${id}`)).json;

    test("that was copied touches nothing of the original, before and after it was renewed", async () => {
      const dataDir = path.join(home, "original");
      const copy = path.join(home, "copy");
      const original = await start(dataDir, { destroyOnExit: true });
      const id = await original.client.spawn({ image: "host", ttl: "10m" });
      await cp(dataDir, copy, {
        recursive: true,
        preserveTimestamps: true,
        // What comes and goes beside a running service; a copy of it is none.
        filter: (source) =>
          !/\.(draft|sock|new)$|\/\.[^/]*\.json\.[0-9a-f-]+$|\/native\/(ahead\/.|prepared-)/.test(source),
      });
      await noteBackup(copy, new Date());
      await expect(serve({ config: configOf(copy), logger: silentLogger })).rejects.toThrow(ForeignDataDir);
      const { id: named } = JSON.parse(readFileSync(path.join(dataDir, "installation.json"), "utf8"));
      expect(await restore({ config: configOf(copy) })).toEqual({ former: named.slice(0, 12), left: [] });
      expect(existsSync(path.join(copy, "last-backup.json"))).toBe(false);
      // Repeated, it only removes what was left.
      expect(await restore({ config: configOf(copy) })).toEqual({ former: undefined, left: [] });
      const second = await start(copy, { destroyOnExit: true });
      const found = await eventually(async () => {
        const json = await stateOf(second.client, id);
        return json.state === "running" ? undefined : json;
      });
      expect(found).toMatchObject({
        state: "error",
        error: "its runtime ended: it was not brought along by the restore",
      });
      expect((await second.client.call("DELETE", `/api/v1/sandboxes/${id}`)).status).toBe(200);
      expect((await original.client.exec(id, { command: "echo alive" })).json).toMatchObject({
        stdout: "alive\n",
      });
      expect((await stateOf(original.client, id)).state).toBe("running");
    });

    test("that is no copy is not restored under its sandboxes, unless that is meant", async () => {
      const dataDir = path.join(home, "data");
      const first = await start(dataDir);
      const sandbox = await first.client.spawn({ image: "host", ttl: "10m" });
      await stop(first.service);
      const config = configOf(dataDir);
      await expect(restore({ config })).rejects.toThrow(`${dataDir} is the original, no copy`);
      const second = await start(dataDir);
      await eventually(async () =>
        (await second.client.exec(sandbox, { command: "true" })).json.exit_code === 0 ? true : undefined,
      );
      await stop(second.service);
      const groups = await groupsOf(dataDir);
      const { id } = JSON.parse(readFileSync(path.join(dataDir, "installation.json"), "utf8"));
      const { former } = await restore({ config, evenOriginal: true });
      expect(former).toBe(id.slice(0, 12));
      expect((await purgeInstance(former ?? "", { config })).ended.sort()).toEqual(groups.sort());
    });

    test("that is purged leaves neither process nor group, nor itself", async () => {
      const dataDir = path.join(home, "data");
      const first = await start(dataDir);
      const ids = [await first.client.spawn({ ttl: "10m" }), await first.client.spawn({ ttl: "10m" })];
      const config = configOf(dataDir);
      await expect(purge({ config, remove: true, logger: silentLogger })).rejects.toThrow(DataDirLocked);
      const groups = await groupsOf(dataDir);
      expect(groups.length).toBeGreaterThan(0);
      await stop(first.service);
      const { ended, left } = await purge({ config, remove: true, logger: silentLogger });
      expect([ended.length, left]).toEqual([ids.length, []]);
      expect(existsSync(dataDir)).toBe(false);
      expect(groups.filter((group) => existsSync(group))).toEqual([]);
    });

    test("whose records were removed is purged by the name of its groups, before it is removed", async () => {
      const dataDir = path.join(home, "data");
      const first = await start(dataDir);
      await first.client.spawn({ ttl: "10m" });
      await stop(first.service);
      const groups = await groupsOf(dataDir);
      await rm(path.join(dataDir, "runtimes"), { recursive: true });
      const { ended, left } = await purge({ config: configOf(dataDir), remove: true, logger: silentLogger });
      expect([ended.sort(), left]).toEqual([groups.sort(), []]);
      expect(groups.filter((group) => existsSync(group))).toEqual([]);
      expect(existsSync(dataDir)).toBe(false);
    });

    test("that was removed is purged by the name of its groups, as they bear it", async () => {
      for (const named of [(name: string) => name, (name: string) => `alcove-${name}`]) {
        const dataDir = path.join(home, "data");
        const first = await start(dataDir);
        await first.client.spawn({ ttl: "10m" });
        await stop(first.service);
        const groups = await groupsOf(dataDir);
        const { id } = JSON.parse(readFileSync(path.join(dataDir, "installation.json"), "utf8"));
        await rm(dataDir, { recursive: true, force: true });
        const config = configOf(dataDir);
        const { ended } = await purgeInstance(named(id.slice(0, 12)), { config });
        expect(ended.sort()).toEqual(groups.sort());
        expect(groups.filter((group) => existsSync(group))).toEqual([]);
        // A second time there is nothing, and neither is there of the directory.
        await expect(purgeInstance(id, { config })).rejects.toThrow(NotFound);
        await expect(purge({ config, remove: false, logger: silentLogger })).rejects.toThrow(NotFound);
      }
    });

    test("that lost its identity says whose sandboxes run there, and is not removed under them", async () => {
      const dataDir = path.join(home, "data");
      const first = await start(dataDir);
      await first.client.spawn({ ttl: "10m" });
      await stop(first.service);
      const { id } = JSON.parse(readFileSync(path.join(dataDir, "installation.json"), "utf8"));
      const name = id.slice(0, 12);
      for (const file of ["alcove.db", "alcove.db-wal", "alcove.db-shm", "installation.json"])
        await rm(path.join(dataDir, file), { force: true });
      const { warned, logger } = warnings();
      const second = await serve({ config: configOf(dataDir), logger });
      await second.close();
      expect(
        warned.filter(({ msg }) => /sandboxes it does not know|another installation/.test(msg)),
      ).toMatchObject([
        { instance: name, sandboxes: 1, msg: expect.stringContaining(`purge --instance ${name}`) },
      ]);
      const config = configOf(dataDir);
      const refused = await purge({ config, remove: true, logger: silentLogger });
      expect(refused.left).toEqual([expect.stringContaining(`1 sandboxes of installation ${name}`)]);
      expect(existsSync(dataDir)).toBe(true);
      await purgeInstance(name, { config });
      expect(await purge({ config, remove: true, logger: silentLogger })).toEqual({ ended: [], left: [] });
      expect(existsSync(dataDir)).toBe(false);
    });

    const loseDatabase = async (dataDir: string) => {
      for (const end of ["", "-wal", "-shm"])
        await rm(path.join(dataDir, `alcove.db${end}`), { force: true });
    };

    test("that lost its database says at the start that quotas, templates and keys went with it, once", async () => {
      const dataDir = path.join(home, "data");
      const told = async () => {
        const { warned, logger } = warnings();
        await (await serve({ config: configOf(dataDir), logger })).close();
        return warned.filter(({ msg }) => msg.includes("quotas, templates, keys")).length;
      };
      expect(await told()).toBe(0);
      await loseDatabase(dataDir);
      expect([await told(), await told()]).toEqual([1, 0]);
    });

    test("that lost its database knows its sandboxes again, their owners and limits included", async () => {
      const dataDir = path.join(home, "data");
      const first = await start(dataDir);
      const id = await first.client.spawn({
        image: "host",
        ttl: "10m",
        memory_mb: 96,
        owner_id: "ada",
        metadata: { job: "7" },
      });
      await first.client.exec(id, { command: "echo kept >/tmp/file" });
      await stop(first.service);
      await loseDatabase(dataDir);
      const second = await start(dataDir, { destroyOnExit: true });
      const found = await eventually(async () => {
        const { json } = await second.client.exec(id, { command: "cat /tmp/file" });
        return json.stdout === undefined ? undefined : json;
      });
      expect(found.stdout).toBe("kept\n");
      expect(await stateOf(second.client, id)).toMatchObject({
        state: "running",
        image: "host",
        memory_mb: 96,
        owner_id: "ada",
        metadata: { job: "7" },
      });
    });

    /** What a backup brings back, and what runs that it does not know. */
    const restoredFrom = async (steps: { also: readonly string[]; damaged: boolean }) => {
      const dataDir = path.join(home, "data");
      const first = await start(dataDir);
      const kept = await first.client.spawn({ image: "host", ttl: "10m" });
      const folder = path.join(home, "bk1");
      await backup({ config: configOf(dataDir), folder });
      const younger = await first.client.spawn({ image: "host", ttl: "10m", owner_id: "ada" });
      await stop(first.service);
      if (steps.damaged) {
        await writeFile(path.join(dataDir, "installation.json"), "{");
        await expect(serve({ config: configOf(dataDir), logger: silentLogger })).rejects.toThrow(
          `remove ${path.join(dataDir, "installation.json")}`,
        );
      }
      await loseDatabase(dataDir);
      await rm(path.join(dataDir, "installation.json"));
      for (const name of ["alcove.db", ...steps.also])
        await cp(path.join(folder, name), path.join(dataDir, name));
      const { warned, logger } = warnings();
      const second = await serve({ config: configOf(dataDir, { destroyOnExit: true }), logger });
      open.add(second);
      await second.ready;
      const client = new TestClient(second.url);
      for (const id of [kept, younger])
        await eventually(async () =>
          (await client.exec(id, { command: "echo alive" })).json.stdout === "alive\n" ? true : undefined,
        );
      expect(await stateOf(client, younger)).toMatchObject({ state: "running", owner_id: "ada" });
      expect(warned.map(({ msg }) => msg).filter((msg) => msg.includes("orphan"))).toEqual([]);
      return { dataDir, warned, second };
    };

    test("that was restored from a backup with its mark keeps what was made after the backup", async () => {
      const { dataDir, warned, second } = await restoredFrom({ also: ["installation.json"], damaged: false });
      expect(warned.map(({ msg }) => msg)).toContainEqual(
        expect.stringMatching(/the database is new or older than what runs here/),
      );
      await stop(second);
      const again = warnings();
      const third = await serve({ config: configOf(dataDir), logger: again.logger });
      open.add(third);
      await third.ready;
      expect(again.warned.filter(({ msg }) => msg.includes("database"))).toEqual([]);
    });

    test.each([
      ["kept", []],
      ["from the backup too", ["installation.json"]],
    ] as const)(
      "restored to before an extension ends nothing that was extended, its mark %s",
      async (_, also) => {
        const dataDir = path.join(home, "data");
        const first = await start(dataDir);
        const id = await first.client.spawn({ image: "host", ttl: "5s" });
        const endsMs = performance.now() + 5_000;
        const folder = path.join(home, "bk1");
        await backup({ config: configOf(dataDir), folder });
        const extended = await first.client.call("POST", `/api/v1/sandboxes/${id}/extend`, { ttl: "20m" });
        expect(extended.status).toBe(200);
        await stop(first.service);
        await loseDatabase(dataDir);
        for (const name of ["alcove.db", ...also])
          await cp(path.join(folder, name), path.join(dataDir, name));
        await new Promise((resolve) => setTimeout(resolve, endsMs + 200 - performance.now()));
        const { warned, logger } = warnings();
        const second = await serve({ config: configOf(dataDir, { destroyOnExit: true }), logger });
        open.add(second);
        await second.ready;
        const client = new TestClient(second.url);
        await eventually(async () =>
          (await client.exec(id, { command: "echo alive" })).json.stdout === "alive\n" ? true : undefined,
        );
        expect(warned.map(({ msg }) => msg)).toContainEqual(
          expect.stringMatching(/the database is new or older/),
        );
      },
    );

    test("restored to an older state gives no event's id again, and tells readers that come back", async () => {
      const dataDir = path.join(home, "data");
      const first = await start(dataDir);
      const make = async (client: TestClient) => {
        const id = await client.spawn({ image: "host", ttl: "5m" });
        await client.call("DELETE", `/api/v1/sandboxes/${id}`);
      };
      /** What a reader of everything that comes back with an id is sent first. */
      const after = async (client: TestClient, id: string) => {
        const answer = await fetch(`${client.url}/api/v1/events`, { headers: { "Last-Event-ID": id } });
        let text = "";
        for await (const piece of answer.body ?? []) {
          text += Buffer.from(piece).toString();
          const data = [...text.matchAll(/^data: ?(.*)\n/gm)].map(([, json]) => JSON.parse(json ?? ""));
          const all = data.filter(({ id }) => id !== undefined);
          if (all.some(({ type }) => type === "sandbox.destroyed")) return all;
        }
        throw new Error(`the stream ended: ${text}`);
      };
      await make(first.client);
      const folder = path.join(home, "bk1");
      await backup({ config: configOf(dataDir), folder });
      await make(first.client);
      await make(first.client);
      const seen = (await after(first.client, "1")).at(-1);
      await stop(first.service);
      await loseDatabase(dataDir);
      await cp(path.join(folder, "alcove.db"), path.join(dataDir, "alcove.db"));
      const { client } = await start(dataDir, { destroyOnExit: true });
      await make(client);
      const [told, next] = await after(client, String(Number(seen.id) + 5));
      expect(told).toMatchObject({ type: "events.dropped", data: { at_most: true } });
      expect(Number(next.id)).toBe(Number(told.id) + 1);
    });

    test("whose database is another's is made an installation of its own", async () => {
      const [dataDir, elsewhere] = [path.join(home, "data"), path.join(home, "elsewhere")];
      for (const each of [elsewhere, dataDir]) await stop((await start(each)).service);
      await loseDatabase(dataDir);
      await cp(path.join(elsewhere, "alcove.db"), path.join(dataDir, "alcove.db"));
      const config = configOf(dataDir);
      await expect(serve({ config, logger: silentLogger })).rejects.toThrow("different installations");
      await restore({ config });
      await stop((await start(dataDir)).service);
      // As a restore leaves it that ended between the database and the file.
      await restore({ config, evenOriginal: true });
      const file = path.join(dataDir, "installation.json");
      await writeFile(file, JSON.stringify({ ...JSON.parse(readFileSync(file, "utf8")), id: "before" }));
      await restore({ config });
      await stop((await start(dataDir)).service);
    });

    describe("with its database elsewhere", () => {
      let database: string;
      let [original, copy] = ["", ""];
      beforeEach(async () => {
        await mkdir(path.join(home, "elsewhere"));
        database = path.join(home, "elsewhere", "state.db");
        [original, copy] = [path.join(home, "original"), path.join(home, "copy")];
      });
      /** The original ran, was stopped, and was copied without its database; its sandbox runs. */
      const copied = async () => {
        const first = await start(original, { database });
        const id = await first.client.spawn({ image: "host", ttl: "10m" });
        await stop(first.service);
        await cp(original, copy, { recursive: true, filter: (source) => !source.endsWith(".sock") });
        return id;
      };
      const goesOn = async (dataDir: string, id: string, used = database) => {
        const { client } = await start(dataDir, { destroyOnExit: true, database: used });
        await eventually(async () =>
          (await client.exec(id, { command: "true" })).json.exit_code === 0 ? true : undefined,
        );
      };

      test("keeps it from a copy that is restored, and from a new directory", async () => {
        const id = await copied();
        const config = configOf(copy, { database });
        const own = path.join(copy, "alcove.db");
        await expect(serve({ config, logger: silentLogger })).rejects.toThrow(
          `alcove restore --data-dir ${copy} --set database.path=${own}`,
        );
        const refused = restore({ config });
        await expect(refused).rejects.toThrow(`${original} would lose its database`);
        await expect(refused).rejects.toThrow(`alcove restore --data-dir ${copy} --set database.path=${own}`);
        const fresh = path.join(home, "fresh");
        const isNew = { config: configOf(fresh, { database }), logger: silentLogger };
        await expect(serve(isNew)).rejects.toThrow(`alcove serve --data-dir ${fresh} --set database.path=`);
        await expect(restore(isNew)).rejects.toThrow(`${original} would lose its database`);
        // As advised.
        await restore({ config: configOf(copy, { database: own }) });
        await stop((await start(copy, { database: own })).service);
        await goesOn(original, id);
      });

      test("keeps it from who has a link to it, and from a copy that lost its mark", async () => {
        const id = await copied();
        await symlink(database, path.join(copy, "alcove.db"));
        await expect(restore({ config: configOf(copy) })).rejects.toThrow("would lose its database");
        await rm(path.join(copy, "installation.json"));
        await expect(restore({ config: configOf(copy) })).rejects.toThrow("would lose its database");
        await expect(serve({ config: configOf(copy, { database }), logger: silentLogger })).rejects.toThrow(
          `was last that of ${original}`,
        );
        await goesOn(original, id);
      });

      test("has it to itself while it runs", async () => {
        const { client } = await start(original, { destroyOnExit: true, database });
        await client.spawn({ image: "host", ttl: "10m" });
        for (const dataDir of [copy, path.join(home, "other")]) {
          await mkdir(dataDir);
          const config = configOf(dataDir, { database });
          const told = `the database ${database} is in use by another alcove service (process ${process.pid})`;
          await expect(serve({ config, logger: silentLogger })).rejects.toThrow(told);
          await expect(restore({ config, evenOriginal: true })).rejects.toThrow(told);
          await expect(purge({ config, remove: true, logger: silentLogger })).rejects.toThrow(told);
        }
      });

      test("copied with it is restored, and so is a backup of it", async () => {
        const id = await copied();
        const twin = path.join(home, "twin.db");
        await cp(database, twin);
        await restore({ config: configOf(copy, { database: twin }) });
        await stop((await start(copy, { database: twin })).service);
        const folder = path.join(home, "bk1");
        await backup({ config: configOf(original, { database }), folder });
        const machine = path.join(home, "machine");
        await mkdir(machine);
        await restore({ config: configOf(machine, { database: path.join(folder, "alcove.db") }) });
        await goesOn(original, id);
      });

      test("of an earlier release keeps it where it still stands, and gives it where it is gone", async () => {
        await copied();
        const config = configOf(copy, { database });
        const forget = () => {
          const db = new DatabaseSync(database);
          db.exec("DELETE FROM settings WHERE name = 'owner'");
          db.close();
        };
        forget();
        await expect(restore({ config })).rejects.toThrow(`${original} would lose its database`);
        await purge({ config: configOf(original, { database }), remove: false, logger: silentLogger });
        forget();
        await rm(original, { recursive: true });
        await restore({ config });
        await stop((await start(copy, { database })).service);
      });

      test("loses it where that is meant, and goes on with another that knows its sandboxes", async () => {
        const id = await copied();
        await restore({ config: configOf(copy, { database }), evenOriginal: true });
        const config = configOf(original, { database });
        const own = path.join(original, "alcove.db");
        const advice = `alcove serve --data-dir ${original} --set database.path=${own}`;
        await expect(serve({ config, logger: silentLogger })).rejects.toThrow(advice);
        await expect(restore({ config })).rejects.toThrow(advice);
        await goesOn(original, id, own);
      });

      test("is purged with it", async () => {
        await copied();
        const [elsewhere, kept] = [path.dirname(database), path.join(home, "elsewhere", "kept")];
        await writeFile(kept, "");
        expect(await readdir(elsewhere)).toContain("reserve");
        const config = configOf(original, { database });
        expect((await purge({ config, remove: true, logger: silentLogger })).left).toEqual([]);
        expect(existsSync(original)).toBe(false);
        expect(await readdir(elsewhere)).toEqual(["kept"]);
      });

      test("is purged without the space that another database of the folder has set aside", async () => {
        await copied();
        const other = { database: path.join(path.dirname(database), "other.db") };
        await stop((await start(path.join(home, "other"), other)).service);
        await purge({ config: configOf(original, { database }), remove: true, logger: silentLogger });
        expect((await readdir(path.dirname(database))).filter((name) => !name.endsWith(".pid"))).toEqual([
          "other.db",
          "other.db.lock",
          "reserve",
        ]);
      });
    });

    test("whose database and mark were damaged keeps what was made after the backup, its mark removed", async () => {
      await restoredFrom({ also: [], damaged: true });
    });

    test("that lost its database knows the slots of its pool again", async () => {
      const dataDir = path.join(home, "data");
      const first = await start(dataDir, { pooled: true });
      const ann = { "x-user-id": "ann" };
      const { id } = (await first.client.call("POST", "/api/v1/sandboxes", { ttl: "10m" }, ann)).json;
      await first.client.call("POST", `/api/v1/sandboxes/${id}/files`, { path: "/note", content: "kept" });
      await stop(first.service);
      await loseDatabase(dataDir);
      const { client } = await start(dataDir, { pooled: true, destroyOnExit: true });
      await eventually(async () =>
        (await client.exec(id, { command: "cat note" })).json.stdout === "kept" ? true : undefined,
      );
      expect((await client.call("GET", `/api/v1/sandboxes/${id}/files?path=/note`)).text).toBe("kept");
      const status = (await client.call("GET", "/api/v1/pool/status")).json;
      expect(status).toMatchObject({ enabled: true, vms: 1, total_users: 1 });
      expect((await client.exec(id, { command: "true", user: "root" })).status).toBe(400);
    });
  },
);
