import { execFileSync } from "node:child_process";
import { existsSync, mkdirSync, mkdtempSync, readdirSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import path from "node:path";
import { afterEach, beforeEach, describe, expect, test, vi } from "vitest";
import { ExampleBackend } from "../test/support/custom-backend.ts";
import { TestClient } from "../test/support/http.ts";
import { describeWith } from "../test/support/requirements.ts";
import type { Config } from "./config/config.ts";
import { loadConfig } from "./config/load.ts";
import { serve } from "./main.ts";
import { installationIn } from "./platform/installation.ts";
import { silentLogger } from "./platform/logger.ts";
import { identify } from "./platform/process-identity.ts";
import { ProviderError, type RuntimeId, Unavailable } from "./ports/index.ts";
import { endRuntimes, livingIn, purge, rowsIn } from "./purge.ts";
import { SqliteStore } from "./stores/sqlite/index.ts";

const providerOf = (destroy: (id: string) => Promise<void>) => ({
  name: "docker",
  inventory: async () => ["rt-1", "rt-2", "rt-3"].map((id) => ({ runtimeId: id as RuntimeId })),
  destroy,
});

test("a sandbox that cannot be ended keeps none of the others alive, and is told by its id", async () => {
  const purged = { ended: [], left: [] };
  const destroy = async (id: string) => {
    if (id === "rt-1") throw new ProviderError("the folder of runtime rt-1 cannot be removed");
  };
  await endRuntimes(providerOf(destroy), purged);
  expect(purged).toEqual({
    ended: ["docker/rt-2", "docker/rt-3"],
    left: ["docker/rt-1: the folder of runtime rt-1 cannot be removed"],
  });
});

test("a sandbox that does not end while its provider tries for half a minute keeps none of the others alive", async () => {
  vi.useFakeTimers();
  try {
    const purged = { ended: [], left: [] };
    const destroy = async (id: string) => {
      if (id !== "rt-1") return;
      await new Promise((resolve) => setTimeout(resolve, 35_000));
      throw new ProviderError("rt-1 did not end");
    };
    const ending = endRuntimes(providerOf(destroy), purged);
    await vi.advanceTimersByTimeAsync(35_000);
    await ending;
    expect(purged).toEqual({
      ended: ["docker/rt-2", "docker/rt-3"],
      left: ["docker/rt-1: rt-1 did not end"],
    });
  } finally {
    vi.useRealTimers();
  }
});

test("an engine that is away is asked and told of once", async () => {
  const purged = { ended: [], left: [] };
  let asked = 0;
  const destroy = async () => {
    asked++;
    throw new Unavailable("no Docker Engine");
  };
  await endRuntimes(providerOf(destroy), purged);
  const left = ["rt-1", "rt-2", "rt-3"].map((id) => `docker/${id}: it may still run`);
  expect([asked, purged]).toEqual([1, { ended: [], left: ["docker: no Docker Engine", ...left] }]);
});

test("what has a record is named when the engine cannot be asked for what it runs", async () => {
  const purged = { ended: [], left: [] };
  const silent = {
    ...providerOf(async () => undefined),
    inventory: () => Promise.reject(new Unavailable("silent")),
  };
  await endRuntimes(silent, purged, ["rt-1"]);
  expect(purged).toEqual({ ended: [], left: ["docker: silent", "docker/rt-1: it may still run"] });
});

let opened: AsyncDisposableStack;
let home: string;
beforeEach(() => {
  opened = new AsyncDisposableStack();
  home = mkdtempSync(path.join(tmpdir(), "alcove-purge-"));
  opened.defer(() => rmSync(home, { recursive: true, force: true }));
});
afterEach(() => opened[Symbol.asyncDispose]());

test("a database that does not say what it has is told, and keeps nobody from leaving", async () => {
  const told: string[] = [];
  const damage = new Error("database disk image is malformed");
  const listLive = () => Promise.reject(damage);
  const error = (fields: { err: unknown }, words: string) => {
    expect(fields.err).toBe(damage);
    told.push(words);
  };
  expect(await rowsIn({ sandboxes: { listLive } }, { error: error as typeof silentLogger.error })).toEqual(
    [],
  );
  expect(told).toEqual([expect.stringContaining("the database does not say which sandboxes it has")]);
});

test("sandboxes whose provider lacks the agent are told", async () => {
  const folder = path.join(home, "runtimes", "proot", "rt-1");
  mkdirSync(folder, { recursive: true });
  const write = (name: string, record: object) =>
    writeFileSync(path.join(folder, name), JSON.stringify(record));
  write("runtime.json", { instanceId: "0123456789abcdef" });
  write("process.json", (await identify(process.pid)) ?? {});
  const config = loadConfig({ env: { ALCOVE_DATA_DIR: home }, cwd: home });
  const own = { id: "0123456789abcdef", missing: "alcove-agent is not built" };
  expect(await livingIn(config, own)).toEqual(["1 sandboxes: alcove-agent is not built"]);
});

describe("sandboxes at a backend", () => {
  const dataDir = () => path.join(home, "data");
  /** @param url of the backend; undefined: it is not enabled. */
  const configWith = (url: string | undefined) =>
    loadConfig({
      env: {
        ALCOVE_DATA_DIR: dataDir(),
        ALCOVE_SERVER_PORT: "0",
        ALCOVE_PROVIDERS_DEFAULT: "mock",
        ALCOVE_PROVIDERS_NATIVE_ENABLED: "false",
        ALCOVE_PROVIDERS_DOCKER_ENABLED: "false",
        ...(url !== undefined && {
          ALCOVE_PROVIDERS_CUSTOM_ENABLED: "true",
          ALCOVE_PROVIDERS_CUSTOM_URL: url,
          ALCOVE_PROVIDERS_CUSTOM_API_KEY: ExampleBackend.key,
        }),
      },
      cwd: home,
    });

  /** One was spawned there, and the service has stopped. */
  async function left() {
    const backend = opened.use(await ExampleBackend.start("minimal.mjs"));
    const config = configWith(backend.url);
    const service = await serve({ config, logger: silentLogger });
    await service.ready;
    const client = new TestClient(service.url);
    await client.spawn({ provider: "custom", image: "host", ttl: "10m" });
    await service.close();
    const provider = opened.use(await backend.open(installationIn(dataDir())));
    const running = async () => {
      const listed = await provider.inventory({ signal: AbortSignal.timeout(10_000) });
      return listed.map(({ runtimeId }) => runtimeId);
    };
    return { backend, config, running };
  }

  const purgeWith = (config: Config) => purge({ config, remove: true, logger: silentLogger });

  test("end, though nothing here has a record of them", async () => {
    const { config, running } = await left();
    const [runtimeId] = await running();
    expect(await purgeWith(config)).toEqual({ ended: [`custom/${runtimeId}`], left: [] });
    expect(await running()).toEqual([]);
    expect(existsSync(dataDir())).toBe(false);
  });

  test("end, though the database was lost", async () => {
    const { config, running } = await left();
    for (const end of ["", "-wal", "-shm"]) rmSync(`${config.database.path}${end}`, { force: true });
    expect((await purgeWith(config)).left).toEqual([]);
    expect(await running()).toEqual([]);
  });

  test("that ended by themselves keep nothing, though it is not enabled any more", async () => {
    const { config } = await left();
    {
      await using store = await SqliteStore.open({ path: config.database.path });
      const change = { state: "error", error: "it is dead", updatedAt: new Date() } as const;
      for (const { id } of await store.sandboxes.listLive())
        await store.sandboxes.update(id, ["running"], change, { holder: "local", generation: 0 });
    }
    expect(await purgeWith(configWith(undefined))).toEqual({ ended: [], left: [] });
    expect(existsSync(dataDir())).toBe(false);
  });

  test("that a purge ended are not looked for by the next one", async () => {
    const { config } = await left();
    expect((await purge({ config, remove: false, logger: silentLogger })).ended).toHaveLength(1);
    expect(await purgeWith(config)).toEqual({ ended: [], left: [] });
    expect(existsSync(dataDir())).toBe(false);
  });

  test("are told, and kept known, when a backend that does not have them is asked", async () => {
    const { config, running } = await left();
    const [runtimeId] = await running();
    const other = opened.use(await ExampleBackend.start("minimal.mjs"));
    const { ended, left: told } = await purgeWith(configWith(other.url));
    const line = expect.stringMatching(
      `^custom/${runtimeId}: it is not listed there; .* it may run until 20`,
    );
    expect([ended, told]).toEqual([[], [line]]);
    expect(existsSync(dataDir())).toBe(true);
    expect((await purgeWith(config)).left).toEqual([]);
  });

  test.each(["is not enabled", "does not answer"])("are told, and kept known, when it %s", async (how) => {
    const { backend, config, running } = await left();
    const [runtimeId] = await running();
    if (how === "does not answer") await backend[Symbol.asyncDispose]();
    const { ended, left: told } = await purgeWith(how === "does not answer" ? config : configWith(undefined));
    expect([ended, told]).toEqual([
      [],
      [expect.stringMatching(/^custom: /), `custom/${runtimeId}: it may still run`],
    ]);
    expect(existsSync(dataDir())).toBe(true);
  });
});

describe("the files that microVMs share, in a folder elsewhere,", () => {
  const purgedWith = async (machines: readonly string[]) => {
    const [dataDir, folder] = ["data", "machines"].map((name) => path.join(home, name)) as [string, string];
    for (const name of ["rootfs", "snapshots/ab-v1-0123456789abcdef", "machines", ...machines])
      mkdirSync(path.join(folder, name), { recursive: true });
    mkdirSync(dataDir);
    const env = { ALCOVE_DATA_DIR: dataDir, ALCOVE_PROVIDERS_FIRECRACKER_DATA_DIR: folder };
    const config = loadConfig({ env, cwd: home });
    expect((await purge({ config, remove: true, logger: silentLogger })).left).toEqual([]);
    return existsSync(folder);
  };

  test("go with the rest", async () => {
    expect(await purgedWith([])).toBe(false);
  });

  test("leave what somebody else keeps beside them", async () => {
    const own = path.join("kernels", "vmlinux-6.1.155");
    expect(await purgedWith([own])).toBe(true);
    expect(readdirSync(path.join(home, "machines"), { recursive: true })).toEqual(["kernels", own]);
  });

  test("stay while machines of somebody else are there", async () => {
    expect(await purgedWith(["machines/rt-another"])).toBe(true);
  });
});

await describeWith(["linux", "root"], "a data directory on a file system that is read-only", () => {
  test.each([
    ["whose installation is known", "0123456789abcdef", /alcove purge --instance 0123456789ab --yes$/],
    ["whose installation is not", undefined, /alcove purge --instance NAME --yes \(names: find /],
  ])("%s is refused in words, with the way to end what runs", async (_, id, advice) => {
    const dataDir = path.join(home, "data");
    mkdirSync(dataDir);
    const directory = { path: dataDir, device: "1", inode: "1", born: "0" };
    if (id !== undefined)
      writeFileSync(
        path.join(dataDir, "installation.json"),
        JSON.stringify({ version: 1, id, generation: 0, directory }),
      );
    execFileSync("mount", ["--bind", dataDir, dataDir]);
    try {
      execFileSync("mount", ["-o", "remount,bind,ro", dataDir]);
      const config = loadConfig({ env: { ALCOVE_DATA_DIR: dataDir }, cwd: home });
      const refused = purge({ config, remove: false, logger: silentLogger });
      await expect(refused).rejects.toThrow(/cannot be written to .*EROFS.* not read-only/);
      await expect(refused).rejects.toThrow(advice);
    } finally {
      execFileSync("umount", ["--lazy", dataDir]);
    }
  });
});
