import { readdir, readFile } from "node:fs/promises";
import { join } from "node:path";
import { setTimeout as delay } from "node:timers/promises";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { nativeMissing } from "./support/native-factory.ts";
import { nativeService } from "./support/native-place.ts";
import { preparedIn, processOf } from "./support/prepared.ts";

const missing = await nativeMissing();
/** Milliseconds after the claims were asked for. */
const kills = [0, 4, 11];

describe.skipIf(missing !== undefined)("a service that is killed while it has prepared sandboxes", () => {
  let made: Awaited<ReturnType<typeof nativeService>>;
  beforeAll(async () => {
    made = await nativeService({
      ALCOVE_PROVIDERS_NATIVE_DISK_MB: "64",
      ALCOVE_PROVIDERS_NATIVE_PREPARED: "3",
      ALCOVE_SERVER_DESTROY_ON_EXIT: "true",
    });
  }, 60_000);
  afterAll(() => made.remove(), 60_000);

  const call = (method: string, path: string, body?: unknown) =>
    made.service.client.call(method, `/api/v1/sandboxes${path}`, body);
  const spawn = () => made.service.client.spawn({ image: "host", ttl: "10m" });
  const dirs = async () =>
    (await readdir(join(made.dataDir, "runtimes/native"))).filter((name) => !name.startsWith("."));
  // A check of the provider's health makes one of its own.
  const runtimes = async () => (await dirs()).filter((name) => !/^(prepared|probe)-/.test(name));
  const lives = (pid: number) =>
    readFile(`/proc/${pid}/stat`, "utf8").then(
      (text) => !text.includes(") Z "),
      () => false,
    );
  const running = () => made.service.client.running();

  test.each(kills)(
    "%s ms into claims: nothing is lost, doubled or left",
    async (killMs) => {
      const before = await spawn();
      await expect.poll(async () => (await preparedIn(made.dataDir)).size, { timeout: 20_000 }).toBe(3);
      const waiting = await preparedIn(made.dataDir);
      const answers = Promise.allSettled([1, 2, 3].map(spawn));
      await delay(killMs);
      await made.service.kill();
      const spawned = (await answers).flatMap((one) => (one.status === "fulfilled" ? [one.value] : []));
      await made.service.start();

      const left = async () => (await dirs()).filter((name) => [...waiting.values()].includes(name));
      await expect.poll(left, { timeout: 20_000 }).toEqual([]);
      const surplus = async () => (await runtimes()).length - (await running()).length;
      await expect.poll(surplus, { timeout: 20_000 }).toBe(0);
      const ids = await running();
      expect(ids).toEqual(expect.arrayContaining([before, ...spawned]));
      // Of what was prepared nothing lives but what is somebody's.
      const owned = await Promise.all((await runtimes()).map((name) => processOf(made.dataDir, name)));
      for (const pid of waiting.keys()) expect(await lives(pid)).toBe(owned.includes(pid));
      for (const id of ids) {
        const { json } = await call("POST", `/${id}/exec`, { command: "hostname" });
        expect(json).toMatchObject({ stdout: `${id}\n` });
        await call("DELETE", `/${id}`);
      }
    },
    60_000,
  );
});
