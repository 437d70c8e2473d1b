import { spawnSync } from "node:child_process";
import { existsSync, readFileSync } from "node:fs";
import { cp, mkdir, mkdtemp, readdir, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import path from "node:path";
import { fileURLToPath } from "node:url";
import { afterEach, beforeEach, describe, expect, test } from "vitest";
import { backup } from "../src/backup.ts";
import type { Config } from "../src/config/config.ts";
import { loadConfig } from "../src/config/load.ts";
import { serve } from "../src/main.ts";
import { silentLogger } from "../src/platform/logger.ts";
import { purge } from "../src/purge.ts";
import { restore } from "../src/restore.ts";
import { TestClient } from "./support/http.ts";
import { nativeMissing } from "./support/native-factory.ts";

const checkout = fileURLToPath(new URL("../../../", import.meta.url));
const skip = await nativeMissing();

/** `deploy/debian/prerm` with the folders of a machine below one of the test's, and the command of the checkout. */
describe.skipIf(skip !== undefined)(
  `a removal of the Debian package${skip === undefined ? "" : ` (skipped: ${skip})`}`,
  () => {
    let home: string;
    let usual: string;
    let configs: Config[];
    beforeEach(async () => {
      home = await mkdtemp(path.join(tmpdir(), "alcove-removal-"));
      usual = path.join(home, "usual");
      configs = [];
      await mkdir(path.join(home, "opt"));
      await writeFile(path.join(home, "opt/.complete"), "");
    });
    afterEach(async () => {
      for (const config of configs)
        if (existsSync(config.dataDir)) await purge({ config, remove: true, logger: silentLogger });
      await rm(home, { recursive: true });
    });

    /** As `/etc/alcove/alcove.yaml`, from now on. */
    async function configure(dataDir: string, database: string) {
      const file = path.join(home, "alcove.yaml");
      await writeFile(
        file,
        `data_dir: ${dataDir}\ndatabase: { path: ${database} }\nserver: { port: 0 }\n` +
          "providers: { default: native, docker: { enabled: false }, native: { disk_mb: 0, min_free_mb: 0 } }\n",
      );
      const config = loadConfig({ file, env: {}, cwd: home });
      configs.push(config);
      return config;
    }
    async function spawnOne(config: Config) {
      const service = await serve({ config, logger: silentLogger });
      await service.ready;
      await new TestClient(service.url).spawn({ image: "host", ttl: "10m" });
      await service.close();
    }
    const runtimes = async (dataDir: string) =>
      (await readdir(path.join(dataDir, "runtimes/native"))).filter((name) => name.startsWith("rt-"));
    function remove() {
      const script = readFileSync(path.join(checkout, "deploy/debian/prerm"), "utf8")
        .replaceAll("/run/systemd/system", path.join(home, "none"))
        .replaceAll("/opt/alcove/bin/alcove", path.join(checkout, "bin/alcove"))
        .replaceAll("/opt/alcove", path.join(home, "opt"))
        .replaceAll("/var/lib/alcove", usual)
        .replaceAll("/etc/alcove/alcove.yaml", path.join(home, "alcove.yaml"));
      const { status, stderr } = spawnSync("sh", ["-c", script, "prerm", "remove"], { encoding: "utf8" });
      return { status, stderr };
    }

    test("ends what runs in the usual data directory and in the one that is configured since, wherever their databases are", async () => {
      await spawnOne(await configure(usual, path.join(home, "first.db")));
      const moved = path.join(home, "moved");
      await spawnOne(await configure(moved, path.join(home, "second.db")));
      expect([(await runtimes(usual)).length, (await runtimes(moved)).length]).toEqual([1, 1]);
      expect(remove()).toEqual({ status: 0, stderr: "" });
      expect([await runtimes(usual), await runtimes(moved)]).toEqual([[], []]);
    }, 60_000);

    test("is not kept by a database of a backup that lies in the data directory", async () => {
      const original = await configure(path.join(home, "original"), path.join(home, "original.db"));
      await spawnOne(original);
      await backup({ config: original, folder: usual });
      const database = path.join(home, "restored.db");
      await cp(path.join(usual, "alcove.db"), database);
      const config = await configure(usual, database);
      await restore({ config });
      await spawnOne(config);
      const identity = readFileSync(path.join(usual, "installation.json"), "utf8");
      expect(remove()).toEqual({ status: 0, stderr: "" });
      expect(await runtimes(usual)).toEqual([]);
      expect((await runtimes(original.dataDir)).length).toBe(1);
      expect(readFileSync(path.join(usual, "installation.json"), "utf8")).toBe(identity);
    }, 60_000);
  },
);
