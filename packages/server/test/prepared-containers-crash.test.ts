import { mkdtemp, readFile, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import path from "node:path";
import { setTimeout as delay } from "node:timers/promises";
import { afterAll, beforeAll, expect, test } from "vitest";
import { sharedEngine, type TestEngine } from "./support/docker-engine.ts";
import { ModelService } from "./support/model.ts";
import { containersOf, preparedFolders, preparedNames } from "./support/prepared-containers.ts";
import { describeWith } from "./support/requirements.ts";
import { importBusybox } from "./support/tiny-images.ts";

/** Milliseconds after the claims were asked for. */
const kills = [0, 4, 9, 16, 30];

const readInstanceId = async (dataDir: string): Promise<string> =>
  JSON.parse(await readFile(path.join(dataDir, "installation.json"), "utf8")).id;

await describeWith(
  ["docker", "root", "agent", "launcher", "busybox"],
  "a service that is killed while it has prepared containers",
  () => {
    let engine: TestEngine;
    let dataDir: string;
    let service: ModelService;
    beforeAll(async () => {
      engine = await sharedEngine();
      const image = await importBusybox(engine, "alcove-test/prepared-crash:latest");
      dataDir = await mkdtemp(path.join(tmpdir(), "alcove-service-"));
      service = new ModelService({
        ALCOVE_DATA_DIR: dataDir,
        ALCOVE_SERVER_PORT: "0",
        ALCOVE_PROVIDERS_DEFAULT: "docker",
        ALCOVE_PROVIDERS_NATIVE_ENABLED: "false",
        ALCOVE_PROVIDERS_PROOT_ENABLED: "false",
        ALCOVE_PROVIDERS_DOCKER_SOCKET: engine.socket,
        ALCOVE_PROVIDERS_DOCKER_DEFAULT_IMAGE: image,
        ALCOVE_PROVIDERS_DOCKER_MIN_FREE_MB: "0",
        ALCOVE_PROVIDERS_DOCKER_PREPARED: "3",
        ALCOVE_IMAGES_PULL_POLICY: "never",
        ALCOVE_SERVER_DESTROY_ON_EXIT: "true",
      });
      await service.start();
    }, 120_000);
    afterAll(async () => {
      await service.stop();
      expect(await containersOf(engine, await readInstanceId(dataDir))).toEqual(new Map());
      await rm(dataDir, { recursive: true, force: true });
    }, 120_000);

    const call = (method: string, where: string, body?: unknown) =>
      service.client.call(method, `/api/v1/sandboxes${where}`, body);
    const spawn = () => service.client.spawn({ ttl: "10m" });
    const running = () => service.client.running();

    test.each(kills)(
      "%s ms into claims: nothing is lost, doubled or left",
      async (killMs) => {
        const instanceId = await readInstanceId(dataDir);
        const before = await spawn();
        const count = async () => (await preparedNames(engine, instanceId)).length;
        await expect.poll(count, { timeout: 40_000 }).toBe(3);
        // The last one of them is on its way.
        await delay(2_000);
        const waiting = await preparedNames(engine, instanceId);
        const answers = Promise.allSettled([1, 2, 3].map(spawn));
        await delay(killMs);
        await service.kill();
        const spawned = (await answers).flatMap((one) => (one.status === "fulfilled" ? [one.value] : []));
        await service.start();

        const left = async () => {
          const there = [...(await preparedNames(engine, instanceId)), ...(await preparedFolders(dataDir))];
          return there.filter((name) => waiting.includes(name));
        };
        await expect.poll(left, { timeout: 40_000 }).toEqual([]);
        const surplus = async () => {
          const owned = [...(await containersOf(engine, instanceId)).keys()];
          return owned.filter((name) => !name.startsWith("prepared-")).length - (await running()).length;
        };
        await expect.poll(surplus, { timeout: 40_000 }).toBe(0);
        const ids = await running();
        expect(ids).toEqual(expect.arrayContaining([before, ...spawned]));
        for (const id of ids) {
          const { json } = await call("POST", `/${id}/exec`, { command: "hostname" });
          expect(json).toMatchObject({ stdout: `${id}\n` });
          await call("DELETE", `/${id}`);
        }
      },
      120_000,
    );
  },
);
