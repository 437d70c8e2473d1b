import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import path from "node:path";
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import { loadConfig } from "../src/config/load.ts";
import { type RunningService, serve } from "../src/main.ts";
import { silentLogger } from "../src/platform/logger.ts";
import { EarlierService, earlierReleases } from "./support/earlier-release.ts";
import { eventually, lines, said, TestClient } from "./support/http.ts";
import { nativeMissing } from "./support/native-factory.ts";

const missing = await nativeMissing();
const releases = earlierReleases();
const title = "a sandbox of an earlier release, adopted by this one";
const reason = missing ?? (releases.length === 0 ? "scripts/earlier-release.mjs lays one out" : undefined);

// Not "skipped" in the title: a clone without history cannot have it, and the test command says so by itself.
describe.skipIf(reason !== undefined)(reason === undefined ? title : `${title} (${reason})`, () => {
  let home: string;
  let service: RunningService | undefined;
  beforeEach(async () => {
    home = await mkdtemp(path.join(tmpdir(), "alcove-upgrade-"));
  });
  afterEach(async () => {
    await service?.close();
    service = undefined;
    await rm(home, { recursive: true, force: true });
  });

  const env = () => ({
    ALCOVE_DATA_DIR: path.join(home, "data"),
    ALCOVE_SERVER_PORT: "0",
    ALCOVE_PROVIDERS_DEFAULT: "native",
    ALCOVE_PROVIDERS_NATIVE_DISK_MB: "0",
    ALCOVE_PROVIDERS_NATIVE_MIN_FREE_MB: "0",
  });

  it.for(releases)(
    "serves commands and files, and is destroyed: $commit",
    { timeout: 120_000 },
    async (release) => {
      await using earlier = await EarlierService.start(release.folder, env());
      const before = new TestClient(earlier.url);
      const id = await before.spawn({ image: "host", ttl: "10m", env: { FROM: "before" } });
      const at = `/api/v1/sandboxes/${id}`;
      const script = "echo from before; while [ ! -e /tmp/go ]; do sleep 0.05; done; echo and after; exit 3";
      const kept = (await before.call("POST", `${at}/execs`, { command: script })).json.exec_id;
      expect(kept).toMatch(/^ex-/);
      await earlier.kill();

      const settings = { ...env(), ALCOVE_SERVER_DESTROY_ON_EXIT: "true" };
      service = await serve({ config: loadConfig({ env: settings, cwd: home }), logger: silentLogger });
      await service.ready;
      const client = new TestClient(service.url);
      await eventually(async () => {
        const { json } = await client.call("GET", at);
        return json.state === "running" ? true : undefined;
      });

      // A command that was started before, and those of today.
      expect((await client.call("GET", `${at}/execs`)).json).toMatchObject([
        { exec_id: kept, state: "running" },
      ]);
      expect((await client.exec(id, { command: "touch /tmp/go; echo $FROM" })).json).toMatchObject({
        stdout: "before\n",
        exit_code: 0,
      });
      const record = await eventually(async () => {
        const { json } = await client.call("GET", `${at}/execs/${kept}`);
        return json.state === "running" ? undefined : json;
      });
      expect(record).toMatchObject({ exit_code: 3, reason: "exited" });
      const output = await client.call("GET", `${at}/execs/${kept}/output`);
      expect(said(output.text, "stdout")).toBe("from before\nand after\n");
      // An agent that does not count input is not asked to.
      const fed = await client.exec(id, { command: "tr a-z A-Z", stdin: "abc" });
      expect(fed.json).toMatchObject({ stdout: "ABC", exit_code: 0 });
      expect((await client.exec(id, { command: "sleep 60", timeout: "300ms" })).status).toBe(408);
      const streamed = await client.call("POST", `${at}/exec`, {
        stream: true,
        command: "echo a; echo b >&2; exit 4",
      });
      expect([said(streamed.text, "stdout"), said(streamed.text, "stderr")]).toEqual(["a\n", "b\n"]);
      expect(lines(streamed.text).at(-1)).toMatchObject({ exit_code: 4 });
      const endless = (await client.call("POST", `${at}/execs`, { command: "sleep 60" })).json.exec_id;
      expect((await client.call("DELETE", `${at}/execs/${endless}`)).status).toBe(200);

      // Files, both ways.
      const file = `${at}/files?path=/workspace/file`;
      expect(
        (await client.call("POST", `${at}/files`, { path: "/workspace/file", content: "text" })).status,
      ).toBeLessThan(300);
      expect((await client.call("GET", file)).text).toContain("text");
      expect((await client.call("GET", `${at}/files/list?path=/workspace`)).text).toContain("file");
      expect((await client.call("GET", `${at}/files/archive?path=/workspace`)).status).toBe(200);
      expect((await client.call("GET", `${at}/stats`)).status).toBe(200);

      expect((await client.call("DELETE", at)).status).toBe(200);
      await eventually(async () => {
        const { json } = await client.call("GET", at);
        return json.state === undefined || json.state === "destroyed" ? true : undefined;
      });
    },
  );
});
