import { execFileSync } from "node:child_process";
import {
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  truncateSync,
  writeFileSync,
} from "node:fs";
import { tmpdir } from "node:os";
import path from "node:path";
import { setTimeout as pause } from "node:timers/promises";
import { afterEach, beforeEach, expect, test } from "vitest";
import { type Answer, eventually } from "./support/http.ts";
import { ModelService } from "./support/model.ts";
import { findProgram } from "./support/programs.ts";
import { describeWith } from "./support/requirements.ts";
import { longestTurnMs } from "./support/turn-watch.ts";

const hourMs = 3_600_000;
const api = "/api/v1";
let home: string;
beforeEach(() => {
  home = mkdtempSync(path.join(tmpdir(), "alcove-process-"));
});
afterEach(() => rmSync(home, { recursive: true, force: true }));

function serviceIn(dataDir: string): ModelService {
  return new ModelService({
    ALCOVE_DATA_DIR: dataDir,
    ALCOVE_SERVER_PORT: "0",
    ALCOVE_PROVIDERS_DEFAULT: "mock",
    ALCOVE_DEFAULTS_MAX_SANDBOXES: "10000",
    ALCOVE_DEFAULTS_MAX_MEMORY_MB: "1000000000",
    ALCOVE_DEFAULTS_MAX_VCPUS: "1000000",
  });
}

test("docs/architecture.md names what is in a data directory", async () => {
  const service = serviceIn(home);
  await service.start();
  const names = readdirSync(home);
  expect(await service.stop()).toBe(0);
  const page = readFileSync(new URL("../../../docs/architecture.md", import.meta.url), "utf8");
  const layout = /^<data_dir>\/\n(.*?)^```/ms.exec(page)?.[1] ?? "";
  // The log and the index of a database come and go with it, and what is being written bears another name until it is whole.
  const told = (name: string) => {
    const settled = name.replace(/-(?:wal|shm)$|\.draft$/, "").replace(/.*(?=\.pid$)/, "*");
    return layout.includes(` ${settled}`);
  };
  const whole = names.filter((name) => !/[0-9a-f]{8}(?:-[0-9a-f]{4}){3}/.test(name));
  expect(names).toContain("alcove.db");
  expect(whole.filter((name) => !told(name))).toEqual([]);
});

test("a process whose clock is set by an hour, forwards and back, ends what has expired by it and nothing else", async () => {
  const service = serviceIn(home);
  await service.start();
  try {
    const { client } = service;
    const spawn = async (ttl: string) =>
      (await client.call("POST", `${api}/sandboxes`, { ttl })).json as { id: string; expires_at: string };
    const look = async (id: string) => (await client.call("GET", `${api}/sandboxes/${id}`)).status;
    const begunMs = performance.now();
    const long = await spawn("2h");
    const short = await spawn("30m");
    const command = client.call("POST", `${api}/sandboxes/${long.id}/exec`, {
      command: "sleep 60",
      timeout: "4s",
    });
    await service.jump(hourMs);
    await eventually(async () => ((await look(short.id)) === 404 ? true : undefined), 25_000);
    expect(await look(long.id)).toBe(200);
    // A deadline is a length of time, and does not move with the clock.
    expect((await command).status).toBe(408);
    const tookMs = performance.now() - begunMs;
    expect(tookMs).toBeGreaterThan(3_900);
    expect(tookMs).toBeLessThan(40_000);
    const later = await spawn("30m");
    expect(Date.parse(later.expires_at) - Date.now()).toBeGreaterThan(hourMs);
    await service.jump(-hourMs);
    // Longer than the service waits before it looks at the clock again.
    await pause(11_000);
    for (const { id, expires_at } of [long, later]) {
      const { status, json } = await client.call("GET", `${api}/sandboxes/${id}`);
      expect([status, json.state, json.expires_at]).toEqual([200, "running", expires_at]);
      expect((await client.exec(id, { command: "echo up" })).json.stdout).toBe("up\n");
    }
    expect((await client.call("GET", "/ready")).status).toBe(200);
  } finally {
    expect(await service.stop()).toBe(0);
  }
}, 90_000);

await describeWith(["linux", "root"], "a service whose database turns read-only under load", () => {
  const tool = (name: string, ...args: string[]) => execFileSync(findProgram(name) ?? name, args);
  let disk: string;
  beforeEach(() => {
    const image = path.join(home, "image");
    writeFileSync(image, "");
    truncateSync(image, 96 << 20);
    tool("mkfs.ext4", "-q", image);
    disk = path.join(home, "disk");
    mkdirSync(disk);
    tool("mount", "-o", "loop", image, disk);
  });
  afterEach(() => tool("umount", "--lazy", disk));

  /** Linux makes no file system read-only while files are open for writing; it refuses each write to files that are immutable. */
  const readOnly = (on: boolean) =>
    tool("chattr", on ? "+i" : "-i", path.join(disk, "alcove.db"), path.join(disk, "alcove.db-wal"));

  test("refuses what has to be written, in words, does nothing by halves, and goes on by itself", async () => {
    const service = serviceIn(disk);
    await service.start();
    const { client, pid } = service;
    let phase: "before" | "during" | "between" | "after" = "before";
    const seen: { phase: string; what: string; answer: Answer }[] = [];
    const made = new Map<string, string>();
    /** Ends of these were asked for, and are not known to have come. */
    const perhaps = new Set<string>();
    const tags = new Set<string>();
    let stopped = false;
    const ask = async (what: string, method: string, at: string, body?: unknown) => {
      const begun = phase;
      const answer = await client.call(method, `${api}${at}`, body);
      seen.push({ phase: begun === phase ? begun : "between", what, answer });
      return answer;
    };
    const writer = async (n: number) => {
      const template = `/templates/t-${n}`;
      let confirmed = 64;
      const first = { name: `t-${n}`, image: "mock", memory_mb: confirmed };
      expect((await client.call("POST", `${api}/templates`, first)).status).toBe(201);
      for (let turn = 1; !stopped; turn += 1) {
        const tag = `${n}-${turn}`;
        const spawned = await ask("spawn", "POST", "/sandboxes", { metadata: { tag }, ttl: "10m" });
        if (spawned.status === 201) {
          made.set(spawned.json.id, tag);
          tags.add(tag);
          if (turn % 8 !== 0) {
            const { status } = await ask("destroy", "DELETE", `/sandboxes/${spawned.json.id}`);
            if (status === 200) made.delete(spawned.json.id);
            else perhaps.add(spawned.json.id);
          }
        }
        const wanted = 64 + turn;
        const put = await ask("template", "PUT", template, { image: "mock", memory_mb: wanted });
        if (put.status === 200) confirmed = wanted;
        const { status, json } = await ask("look", "GET", template);
        expect([status, json.memory_mb]).toEqual([200, confirmed]);
        await pause(20);
      }
      return [n, confirmed] as const;
    };
    try {
      const writers = Promise.all(Array.from({ length: 16 }, (_, n) => writer(n)));
      writers.catch(() => undefined);
      const ready = async () => (await client.call("GET", "/ready")).status;
      await pause(1_000);
      phase = "between";
      readOnly(true);
      try {
        await eventually(async () => ((await ready()) === 503 ? true : undefined));
        phase = "during";
        await pause(2_000);
        phase = "between";
      } finally {
        readOnly(false);
      }
      await eventually(async () => ((await ready()) === 200 ? true : undefined), 25_000);
      phase = "after";
      await pause(1_000);
      stopped = true;
      const confirmed = await writers;
      const statuses = (of: string, what: string) => [
        ...new Set(
          seen.filter((one) => one.phase === of && one.what === what).map(({ answer }) => answer.status),
        ),
      ];
      for (const what of ["spawn", "destroy", "template"]) {
        const done = what === "spawn" ? 201 : 200;
        for (const well of ["before", "after"])
          expect([well, what, statuses(well, what)]).toEqual([well, what, [done]]);
      }
      for (const what of ["spawn", "template"])
        expect([what, statuses("during", what)]).toEqual([what, [503]]);
      expect(statuses("during", "look")).toEqual([200]);
      for (const { what, answer } of seen.filter(({ answer }) => answer.status >= 400)) {
        expect([what, answer.status, answer.json.code]).toEqual([what, 503, "unavailable"]);
        expect(answer.json.message).toContain("database");
        expect(Number(answer.headers.get("retry-after"))).toBeGreaterThan(0);
      }
      const listed = (await client.call("GET", `${api}/sandboxes?limit=1000`)).json as {
        id: string;
        state: string;
        metadata: { tag: string };
      }[];
      for (const { metadata } of listed) expect([...tags]).toContain(metadata.tag);
      const ids = new Set(listed.map(({ id }) => id));
      for (const id of made.keys()) if (!perhaps.has(id)) expect([...ids]).toContain(id);
      for (const id of ids) expect([...made.keys()]).toContain(id);
      for (const id of perhaps)
        expect([200, 404]).toContain((await client.call("DELETE", `${api}/sandboxes/${id}`)).status);
      const [left] = [...made.keys()].filter((id) => !perhaps.has(id));
      expect((await client.exec(left ?? "", { command: "echo up" })).json.stdout).toBe("up\n");
      expect(service.pid).toBe(pid);
      // The service is a process of its own, which watches its own turns.
      expect(await service.longestTurnMs()).toBeLessThan(longestTurnMs);
      await service.kill();
      await service.start();
      for (const [n, memoryMb] of confirmed)
        expect((await service.client.call("GET", `${api}/templates/t-${n}`)).json.memory_mb).toBe(memoryMb);
    } finally {
      stopped = true;
      await service.stop();
    }
  }, 90_000);
});
