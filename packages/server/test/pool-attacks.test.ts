import { existsSync } from "node:fs";
import { glob, readdir, readFile } from "node:fs/promises";
import { availableParallelism, constants } from "node:os";
import { basename, join } from "node:path";
import { afterAll, afterEach, beforeAll, describe, expect, test, vi } from "vitest";
import { attackProbe } from "./support/attack-probe.ts";
import { eventually, readEvents, said, TestClient } from "./support/http.ts";
import { type NativeHome, nativeHome, testImage } from "./support/native.ts";
import { nativeMissing } from "./support/native-factory.ts";
import { startTestServer, type TestServer } from "./support/test-server.ts";

// On a machine that is busy with other tests.
vi.setConfig({ testTimeout: 60_000 });

const skip = await nativeMissing();
const shareMb = 64;
const processors = availableParallelism();

describe.skipIf(skip !== undefined)(
  `users of one VM on native${skip === undefined ? "" : ` (skipped: ${skip})`}`,
  () => {
    let home: NativeHome;
    let server: TestServer;
    beforeAll(async () => {
      home = await nativeHome();
      server = await start();
    });
    afterAll(async () => {
      await server[Symbol.asyncDispose]();
      await home.remove();
    });

    const spawned: string[] = [];
    afterEach(async () => {
      const client = new TestClient(server.url);
      for (const id of spawned.splice(0)) await client.call("DELETE", `/api/v1/sandboxes/${id}`);
    });

    const start = (
      at: NativeHome = home,
      users = 2,
      env: Record<string, string> = {},
      change: Parameters<NativeHome["open"]>[0] = {},
    ) =>
      startTestServer({
        provider: async () => at.open({ pidsLimit: 64, ...change }),
        dataDir: at.dataDir,
        env: {
          ALCOVE_POOL_ENABLED: "true",
          ALCOVE_POOL_MAX_VMS: "1",
          ALCOVE_POOL_MAX_USERS_PER_VM: String(users),
          ALCOVE_POOL_MEMORY_MB: String(users * shareMb),
          ALCOVE_POOL_VCPUS: String(processors),
          ALCOVE_POOL_IMAGE: testImage,
          ...env,
        },
      });

    /** A sandbox of a user, and what is asked of it. */
    async function sandboxOf(name: string) {
      const client = new TestClient(server.url, { "x-user-id": name });
      const id = await client.spawn({ ttl: "10m" });
      spawned.push(id);
      const path = `/api/v1/sandboxes/${id}`;
      return {
        client,
        id,
        path,
        run: async (command: string, body: Record<string, unknown> = {}) =>
          (await client.exec(id, { command, ...body })).json,
        background: (command: string, body: Record<string, unknown> = {}) =>
          client.call("POST", `${path}/execs`, { command, ...body }),
        destroy: () => client.call("DELETE", path),
      };
    }
    const poolStatus = async () => (await new TestClient(server.url).call("GET", "/api/v1/pool/status")).json;

    test("each is somebody else, at home in a workspace that is closed to all others", async () => {
      const [ann, again, bob] = [await sandboxOf("ann"), await sandboxOf("ann"), await sandboxOf("bob")];
      expect(await poolStatus()).toMatchObject({ vms: 1, total_users: 2 });
      const who = async (of: typeof ann) => (await of.run("id -u; id -g; pwd; echo $HOME")).stdout;
      expect(await who(ann)).toBe("10001\n10001\n/workspace\n/workspace\n");
      expect(await who(again)).toBe(await who(ann));
      expect(await who(bob)).toBe("10002\n10002\n/workspace\n/workspace\n");
      expect((await ann.run("stat -c '%a %u' /workspace")).stdout).toBe("700 10001\n");
      await ann.client.call("POST", `${ann.path}/files`, {
        path: "/script",
        content: "echo $0",
        mode: "755",
      });
      expect((await ann.run("stat -c %u script; ./script; echo more >>script && echo written")).stdout).toBe(
        "10001\n./script\nwritten\n",
      );
      for (const one of [ann, again, bob]) await one.destroy();
      expect(await poolStatus()).toMatchObject({ vms: 0, total_users: 0 });
    });

    test("ports and previews lead to the sandbox that they name, and by path to nobody else's", async () => {
      const asks = { "x-alcove-client": "test" };
      const [ann, again, bob] = [await sandboxOf("ann"), await sandboxOf("ann"), await sandboxOf("bob")];
      const served = [
        [ann, "of ann"],
        [again, "of ann's other"],
        [bob, "of bob"],
      ] as const;
      for (const [one, text] of served)
        await one.background(
          `while true; do printf 'HTTP/1.1 200 OK\\r\\nConnection: close\\r\\n\\r\\n%s' "${text}" | nc -l -p 8080 127.0.0.1; done`,
        );
      for (const [one, text] of served) {
        const byPath = () => one.client.call("GET", `${one.path}/ports/8080/`, undefined, asks);
        await eventually(async () => ((await byPath()).text === text ? true : undefined));
        const preview = await one.client.call("GET", `${one.path}/preview/8080`);
        expect(preview.json.url).toContain(`8080-${one.id}.localhost`);
      }
      for (const path of [`${ann.path}/ports/8080/`, `${ann.path}/preview/8080`])
        expect((await bob.client.call("GET", path, undefined, asks)).status).toBe(404);
    });

    test("on the machine's own network ports are anybody's, and are not reached, whatever is configured since", async () => {
      const other = await nativeHome();
      const startOn = (networkMode: "host" | "none") =>
        start(other, 2, { ALCOVE_PROVIDERS_NATIVE_NETWORK_MODE: networkMode }, { networkMode });
      let shared = await startOn("host");
      try {
        const ann = () => new TestClient(shared.url, { "x-user-id": "ann", "x-alcove-client": "test" });
        const id = await ann().spawn();
        const asked = async () => {
          for (const path of ["ports/8080/", "preview/8080"]) {
            const answer = await ann().call("GET", `/api/v1/sandboxes/${id}/${path}`);
            expect([answer.status, answer.json.message]).toEqual([
              400,
              expect.stringContaining("may be another user's"),
            ]);
          }
        };
        await asked();
        await shared[Symbol.asyncDispose]();
        shared = await startOn("none");
        await asked();
        await ann().call("DELETE", `/api/v1/sandboxes/${id}`);
      } finally {
        await shared[Symbol.asyncDispose]();
        await other.remove();
      }
    });

    test("files, processes, terminals and ports of another are out of reach", async () => {
      const [ann, bob] = [await sandboxOf("ann"), await sandboxOf("bob")];
      await ann.run(
        "echo treasure >secret; chmod 777 secret; echo treasure >/tmp/secret; chmod 777 /tmp/secret",
      );
      await ann.run("echo treasure >/dev/shm/secret");
      await ann.background("exec sleep 4711");
      const shell = await ann.background("cat", { tty: true, cols: 80, rows: 24 });
      expect(shell.status).toBe(201);
      await ann.background("while true; do echo treasure | nc -l -p 8080 127.0.0.1; done");
      await eventually(async () =>
        (await ann.run("nc 127.0.0.1 8080 </dev/null")).stdout.includes("treasure") ? true : undefined,
      );
      const hostile = [
        "cat /workspace/secret /tmp/secret /dev/shm/secret",
        "cat /proc/[0-9]*/cwd/secret /proc/[0-9]*/root/workspace/secret",
        "find / -name secret -exec cat {} + 2>/dev/null",
        "nc 127.0.0.1 8080 </dev/null",
        "ps | grep 4711 | grep -v grep && echo treasure",
        "for each in /dev/pts/[0-9]*; do [ $each = '/dev/pts/[0-9]*' ] || echo treasure >$each; done; ls /dev/pts | grep -v ptmx && echo treasure",
        "kill -9 -1; for each in $(seq 1 300); do kill -9 $each; done; echo done",
      ];
      for (const command of hostile) {
        const { stdout } = await bob.run(command);
        expect(stdout ?? "", command).not.toContain("treasure");
      }
      const terminal = await ann.client.call("GET", `${ann.path}/execs/${shell.json.exec_id}/output`);
      expect(said(terminal.text, "stdout")).toBe("");
      expect((await ann.run("ps | grep -c '[s]leep 4711'")).stdout).toBe("1\n");
      const read = await bob.client.call("GET", `${bob.path}/files?path=/../../secret`);
      expect(read.status).toBe(404);
      for (const one of [ann, bob]) await one.destroy();
    });

    test("processes of another cannot be traced, whatever their number; one's own can", async () => {
      const [ann, bob] = [await sandboxOf("ann"), await sandboxOf("bob")];
      const probe = await attackProbe();
      const put = await fetch(`${server.url}${bob.path}/files?path=/probe`, {
        method: "PUT",
        headers: { "x-user-id": "bob", "content-type": "application/octet-stream" },
        body: new Uint8Array(probe),
      });
      expect(put.ok, await put.text()).toBe(true);
      await bob.run("chmod 755 probe");
      const trace = async (pid: string) => Number((await bob.run(`./probe trace ${pid} 0`)).stdout);
      const own = await bob.background("exec sleep 4711");
      expect(own.status).toBe(201);
      const numberOf = "ps | sed -n 's/^ *\\([0-9]*\\) .*[s]leep 4711.*/\\1/p'";
      const pidOf = (of: typeof ann) =>
        eventually(async () => (await of.run(numberOf)).stdout.trim() || undefined);
      expect(await trace(await pidOf(bob))).toBe(0);
      await ann.background("exec sleep 4711");
      const row = await server.store.sandboxes.get(ann.id as never);
      // By the machine's number, by the number inside, and the agents by both.
      const outside = await hostPids(home, row?.runtimeId ?? "");
      expect(outside).not.toEqual([]);
      const { EPERM, ESRCH } = constants.errno;
      for (const pid of [...outside, await agentOf(home, row?.runtimeId ?? "")])
        expect([EPERM, ESRCH], `process ${pid}`).toContain(await trace(String(pid)));
      expect(await trace("1")).toBe(EPERM);
      // What bob sees are bob's own: none of them is ann's.
      expect((await bob.run("cat /proc/[0-9]*/status | grep ^Uid: | sort -u")).stdout).not.toBe("");
      expect(
        (
          await ann.run(
            "ps | grep -c '[s]leep 4711'; grep TracerPid /proc/[0-9]*/status | grep -vc '[^0-9]0$'",
          )
        ).stdout,
      ).toBe("1\n0\n");
      for (const one of [ann, bob]) await one.destroy();
    });

    test("one that keeps all processors busy, in several sandboxes, leaves another its share of them", async () => {
      const [ann, bob, more] = [await sandboxOf("ann"), await sandboxOf("bob"), await sandboxOf("bob")];
      const groups = await userGroups(home);
      expect(groups.map(({ uid }) => uid)).toEqual(["user-10001", "user-10002"]);
      // A weight for each user, not for each sandbox: nothing that one does makes it more.
      expect(new Set(groups.map(({ weight }) => weight)).size).toBe(1);
      const busy = (of: typeof ann, loops: number) =>
        of.background(`for each in $(seq ${loops}); do (while true; do :; done) & done; sleep 60`, {
          timeout: "60s",
        });
      for (const one of [bob, more]) await busy(one, Math.min(5 * processors, 50));
      await busy(ann, Math.min(processors, 50));
      const used = async () => (await userGroups(home)).map(({ cpuMs }) => cpuMs);
      const before = await used();
      const since = async () => (await used()).map((each, index) => each - (before[index] ?? 0));
      const enough = async () =>
        (await since()).reduce((sum, each) => sum + each, 0) > 2_500 ? true : undefined;
      await eventually(enough, 40_000);
      const [hers = 0, his = 0] = await since();
      // By processes it would be one in eleven, on a machine of up to ten processors.
      expect(hers / (hers + his), `${hers} of ${hers + his} ms`).toBeGreaterThan(0.22);
      for (const one of [ann, bob, more]) await one.destroy();
    });

    test("one that takes all it can get, in several sandboxes, leaves another its part", async () => {
      const [ann, bob, more] = [await sandboxOf("ann"), await sandboxOf("bob"), await sandboxOf("bob")];
      const fill = "dd if=/dev/zero of=/dev/shm/fill bs=1M count=44 2>/dev/null";
      expect((await bob.run(fill)).exit_code).toBe(0);
      // Each fits into its sandbox; both together do not fit into the user's part.
      expect((await more.run(fill)).exit_code).not.toBe(0);
      for (const one of [bob, more]) {
        await one.background("while true; do sleep 100 & done", { timeout: "20s" });
        await one.background("while true; do :; done", { timeout: "20s" });
      }
      const done = await ann.run(`${fill} && for each in $(seq 1 20); do /bin/true; done; echo whole`);
      expect([done.exit_code, done.stdout]).toEqual([0, "whole\n"]);
      for (const one of [ann, bob, more]) await one.destroy();
      expect(await poolStatus()).toMatchObject({ vms: 0, total_users: 0 });
      expect(await slotGroups(home)).toEqual([]);
    });

    test("neighbours that all have their whole part leave the last user of a full VM its own", async () => {
      const users = 4;
      const full = await nativeHome();
      try {
        await using crowded = await start(full, users);
        const sandboxOf = async (name: string) => {
          const client = new TestClient(crowded.url, { "x-user-id": name });
          const id = await client.spawn({ ttl: "10m" });
          return async (command: string) => (await client.exec(id, { command })).json;
        };
        const fill = (mb: number) => `dd if=/dev/zero of=/dev/shm/fill bs=1M count=${mb} 2>&1 && echo whole`;
        const last = await sandboxOf("last");
        for (let neighbour = 1; neighbour < users; neighbour++) {
          for (let sandbox = 1; sandbox <= 2; sandbox++) {
            const run = await sandboxOf(`neighbour-${neighbour}`);
            expect(await run(fill(shareMb / 2 + 4))).toMatchObject({ exit_code: 0 });
          }
        }
        for (let attempt = 1; attempt <= 3; attempt++) {
          const filled = await last(fill(shareMb - 6));
          expect(filled, JSON.stringify(filled)).toMatchObject({ exit_code: 0 });
        }
      } finally {
        await full.remove();
      }
    });

    test("a restart keeps slots; one whose runtime vanished frees its own, with an event", async () => {
      const ann = await sandboxOf("ann");
      const bob = await sandboxOf("bob");
      await ann.run("echo kept >note");
      await server[Symbol.asyncDispose]();
      server = await start();
      expect(await poolStatus()).toMatchObject({ vms: 1, total_users: 2 });
      const back = new TestClient(server.url, { "x-user-id": "ann" });
      expect((await back.exec(ann.id, { command: "cat note; id -u" })).json.stdout).toBe("kept\n10001\n");
      expect((await back.call("GET", `${ann.path}/files?path=/note`)).text).toBe("kept\n");
      expect((await back.exec(ann.id, { command: "true", user: "root" })).status).toBe(400);
      const cyd = new TestClient(server.url, { "x-user-id": "cyd" });
      expect((await cyd.call("POST", "/api/v1/sandboxes", {})).status).toBe(503);
      const row = await server.store.sandboxes.get(bob.id as never);
      process.kill(await agentOf(home, row?.runtimeId ?? ""), "SIGKILL");
      await readEvents(`${server.url}/api/v1/events?type=sandbox.error`, {
        headers: { "last-event-id": "0" },
        enough: (events) => events.some(({ sandbox_id }) => sandbox_id === bob.id),
      });
      expect(await poolStatus()).toMatchObject({ vms: 1, total_users: 1 });
      const made = await cyd.call("POST", "/api/v1/sandboxes", {});
      expect(made.status).toBe(201);
      for (const id of [ann.id, bob.id, made.json.id])
        await new TestClient(server.url).call("DELETE", `/api/v1/sandboxes/${id}`);
      expect(await poolStatus()).toMatchObject({ vms: 0, total_users: 0 });
    });
  },
);

/** Control groups of VMs that are left. */
async function slotGroups(home: NativeHome): Promise<string[]> {
  const name = `alcove-test${home.dataDir.slice(-6)}`;
  const found: string[] = [];
  for (const at of ["", "memory", "cpu", "pids"]) {
    const names = await readdir(join("/sys/fs/cgroup", at, name)).catch(() => []);
    found.push(...names.filter((each) => each.startsWith("vm-")));
  }
  return found;
}

/** Where a controller's groups of users are. With v2 all of them are below the service's own group, wherever that is. */
function userDirs(home: NativeHome, controller: string): AsyncIterable<string> {
  const top = "/sys/fs/cgroup";
  const tree = existsSync(join(top, "cgroup.controllers")) ? "**" : controller;
  return glob(`${top}/${tree}/alcove-test${home.dataDir.slice(-6)}/vm-*/user-*`);
}

/** Users of the pool: what weight they have and how much of the processors they have used. */
async function userGroups(home: NativeHome): Promise<{ uid: string; weight: string; cpuMs: number }[]> {
  const groups = [];
  for await (const dir of userDirs(home, "cpu")) {
    const text = (path: string) => readFile(join(dir, path), "utf8");
    const v2 = existsSync(join(dir, "cpu.weight"));
    const used = v2
      ? Number(/^usage_usec (\d+)/m.exec(await text("cpu.stat"))?.[1]) / 1_000
      : Number(await readFile(join(dir.replace("/cpu/", "/cpuacct/"), "cpuacct.usage"), "utf8")) / 1_000_000;
    groups.push({ uid: basename(dir), weight: await text(v2 ? "cpu.weight" : "cpu.shares"), cpuMs: used });
  }
  return groups.sort((one, other) => one.uid.localeCompare(other.uid));
}

/** Processes of a runtime, by the machine's numbers. */
async function hostPids(home: NativeHome, runtimeId: string): Promise<string[]> {
  const found: string[] = [];
  for await (const dir of userDirs(home, "pids"))
    for await (const file of glob(join(dir, runtimeId, "**", "cgroup.procs")))
      found.push(...(await readFile(file, "utf8")).split("\n").filter((line) => line !== ""));
  return found;
}

/** The process that is a runtime's first. */
async function agentOf(home: NativeHome, runtimeId: string): Promise<number> {
  const folder = join(home.dataDir, "runtimes", "native", runtimeId);
  const names = await readdir(folder);
  for (const name of names.filter((each) => each.endsWith(".json") || each === "pid")) {
    const { pid } = JSON.parse(await readFile(join(folder, name), "utf8")) ?? {};
    if (typeof pid === "number") return pid;
  }
  throw new Error(`no process is written down in ${names}`);
}
