import { existsSync, readFileSync } from "node:fs";
import { cp, glob, mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import path from "node:path";
import { Writable } from "node:stream";
import { pino } from "pino";
import { afterEach, beforeEach, describe, expect, test } from "vitest";
import { loadConfig } from "../src/config/load.ts";
import { type RunningService, serve } from "../src/main.ts";
import { DataDirLocked } from "../src/platform/data-dir-lock.ts";
import { ForeignDataDir } from "../src/platform/installation.ts";
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

    const configOf = (dataDir: string, { destroyOnExit = false, pooled = false }: StartOptions = {}) =>
      loadConfig({
        env: {
          ALCOVE_DATA_DIR: dataDir,
          ALCOVE_SERVER_PORT: "0",
          ALCOVE_PROVIDERS_DEFAULT: "native",
          ALCOVE_PROVIDERS_NATIVE_DISK_MB: "0",
          ALCOVE_PROVIDERS_NATIVE_MIN_FREE_MB: "0",
          ALCOVE_SERVER_DESTROY_ON_EXIT: String(destroyOnExit),
          ALCOVE_POOL_ENABLED: String(pooled),
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
        filter: (source) => !/\.(draft|sock)$/.test(source),
      });
      await expect(serve({ config: configOf(copy), logger: silentLogger })).rejects.toThrow(ForeignDataDir);
      expect(await restore({ config: configOf(copy) })).toEqual({ left: [] });
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
