import { execFileSync } from "node:child_process";
import { once } from "node:events";
import { chmod, glob, mkdir, mkdtemp, readdir, readFile, rm, writeFile } from "node:fs/promises";
import { type AddressInfo, createServer } from "node:net";
import { tmpdir } from "node:os";
import path from "node:path";
import { afterAll, beforeAll, describe, expect, test, vi } from "vitest";
import { finish, runCli, startCli } from "./testing/run-cli.ts";

// Each command is a process of its own, on a machine that may be busy.
vi.setConfig({ testTimeout: 60_000 });

let dir: string;
beforeAll(async () => {
  dir = await mkdtemp(path.join(tmpdir(), "alcove-service-"));
});
afterAll(async () => {
  await rm(dir, { recursive: true, force: true });
});

const run = (...args: string[]) => runCli(args, { cwd: dir });

describe("config lint", () => {
  test("ends with 0 on the defaults, with 1 on what is unfit for production", async () => {
    expect((await run("config", "lint")).code).toBe(0);
    const production = await run("config", "lint", "--production", "--json");
    expect(production.code).toBe(1);
    const { findings } = JSON.parse(production.stdout);
    expect(findings.map(({ id }: { id: string }) => id)).toContain("auth-missing");
  });

  test("notices a file with a key that everybody can read", async () => {
    const key = path.join(dir, "open-key");
    await writeFile(key, "0123456789abcdef0123");
    await writeFile(path.join(dir, "keys.yaml"), "auth:\n  api_key_file: open-key\n");
    const ids = async () => {
      const { stdout } = await run("config", "lint", "--json", "--config", path.join(dir, "keys.yaml"));
      return JSON.parse(stdout).findings.map(({ id }: { id: string }) => id);
    };
    await chmod(key, 0o644);
    expect(await ids()).toEqual(["secret-readable"]);
    await chmod(key, 0o640);
    expect(await ids()).toEqual([]);
    await writeFile(path.join(dir, "keys.yaml"), "auth:\n  api_key: 0123456789abcdef0123\n", { mode: 0o644 });
    expect(await ids()).toEqual(["secret-readable"]);
  });

  test("takes what serve takes with --set", async () => {
    const result = await run("config", "lint", "--set", "server.port=much");
    expect(result).toMatchObject({ code: 1, stdout: expect.stringContaining("--set server.port") });
  });

  test("tells every problem of a file that stops the start", async () => {
    const file = path.join(dir, "bad.yaml");
    await writeFile(file, "server:\n  prot: 1\ndefaults:\n  ttl: soon\n");
    const result = await run("config", "lint", "--config", file);
    expect(result.code).toBe(1);
    expect(result.stdout).toContain("did you mean server.port?");
    expect(result.stdout).toContain("defaults.ttl");
  });
});

describe("image", () => {
  test("import, list and rm", async () => {
    await mkdir(path.join(dir, "rootfs", "etc"), { recursive: true });
    await writeFile(path.join(dir, "rootfs", "etc", "hello"), "hi");
    const imported = await run("image", "import", "rootfs", "tiny:1", "--data-dir", "images");
    expect(imported).toMatchObject({ code: 0, stdout: "tiny:1\n" });
    const list = await run("image", "list", "--json", "--data-dir", "images");
    expect(JSON.parse(list.stdout)).toMatchObject([{ name: "tiny:1" }]);
    expect((await run("image", "rm", "tiny:1", "--data-dir", "images")).code).toBe(0);
    expect((await run("image", "rm", "tiny:1", "--data-dir", "images")).code).toBe(3);
  });
});

/** Control groups of whatever depth a doctor's are, with its pid in their name. */
async function groupsNaming(pid: number | undefined): Promise<string[]> {
  const found: string[] = [];
  for await (const group of glob(`/sys/fs/cgroup/{,*/,*/*/,*/*/*/}alcove-*${pid}`)) found.push(group);
  return found;
}

describe("doctor", () => {
  test("--json tells for each provider whether it works, and why not", async () => {
    const result = await run("doctor", "--json");
    const { ok, machine, providers } = JSON.parse(result.stdout);
    expect(result.code).toBe(ok ? 0 : 1);
    expect(machine.map(({ id }: { id: string }) => id)).toEqual(
      expect.arrayContaining([
        "node",
        "data-dir",
        "disk",
        "database-disk",
        "port",
        "cgroups",
        "user-namespaces",
      ]),
    );
    expect(providers.map(({ name }: { name: string }) => name)).toEqual([
      "firecracker",
      "native",
      "docker",
      "e2b",
      "custom",
      "proot",
      "mock",
    ]);
    for (const { works, error } of providers) expect(works || error.length > 0).toBe(true);
  });

  test("takes what serve takes with --set", async () => {
    const result = await run("doctor", "--set", "server.port=much");
    expect(result).toMatchObject({ code: 78, stderr: expect.stringContaining("--set server.port") });
  });

  test("leaves nothing where it looked, and says when less is free than is kept free", async () => {
    const place = path.join(dir, "looked-at");
    await mkdir(place);
    const mark = ["--config", path.join(place, "mark.yaml")];
    await writeFile(path.join(place, "mark.yaml"), "providers:\n  native:\n    min_free_mb: 1000000000\n");
    const result = await runCli(["doctor", "--json", "--data-dir", path.join(place, "deep/data"), ...mark], {
      cwd: place,
    });
    expect(result.code).toBe(1);
    const disk = JSON.parse(result.stdout).machine.find(({ id }: { id: string }) => id === "disk");
    expect(disk).toMatchObject({ level: "fail", message: expect.stringContaining("min_free_mb") });
    const { providers } = JSON.parse(result.stdout);
    const native = providers.find(({ name }: { name: string }) => name === "native");
    expect(native).toMatchObject({ works: false, error: expect.stringContaining("not tried") });
    expect(await readdir(place)).toEqual(["mark.yaml"]);
  });

  test.skipIf(process.getuid?.() !== 0)("leaves nothing on a full disk either, and says so", async () => {
    const disk = path.join(dir, "full");
    await mkdir(disk);
    execFileSync("mount", ["-t", "tmpfs", "-o", "size=24m", "alcove-test", disk]);
    try {
      const data = path.join(disk, "data");
      await mkdir(data);
      await writeFile(path.join(data, "reserve"), Buffer.alloc(16 << 20));
      await writeFile(path.join(disk, "filler"), Buffer.alloc(16 << 20)).catch(() => undefined);
      const child = startCli(["doctor", "--json", "--data-dir", data], {
        cwd: dir,
        env: { ALCOVE_PROVIDERS_NATIVE_MIN_FREE_MB: "0" },
      });
      const { pid } = child;
      const { stdout, stderr } = await finish(child);
      const { machine, providers } = JSON.parse(stdout);
      expect(providers, stderr).toHaveLength(7);
      expect(machine.find(({ id }: { id: string }) => id === "database-disk")).toMatchObject({
        level: "warn",
        message: "the disk of the database is full; the reserve of 16 MiB is there",
      });
      expect(await readdir(data)).toEqual(["reserve"]);
      expect(await groupsNaming(pid)).toEqual([]);
    } finally {
      execFileSync("umount", ["--lazy", disk]);
    }
  });

  test("takes away what it tries when a signal ends it", async () => {
    const place = path.join(dir, "interrupted");
    await mkdir(place);
    const child = startCli(["doctor", "--data-dir", place], { cwd: dir });
    const ended = finish(child);
    const { pid } = child;
    // From the first sandbox that is tried on, where one can be; the folder is there before.
    await vi.waitFor(async () => expect(await readdir(place)).toHaveLength(1), {
      timeout: 30_000,
      interval: 5,
    });
    child.kill("SIGTERM");
    expect((await ended).code).toBe(130);
    expect(await readdir(place)).toEqual([]);
    expect(await groupsNaming(pid)).toEqual([]);
  });
});

describe("purge and restore", () => {
  test("end with 3 and make nothing where there is nothing of the name", async () => {
    const nowhere = path.join(dir, "no-such-place");
    for (const args of [
      ["purge", "--data-dir", nowhere, "--yes"],
      ["purge", "--set", `data_dir=${nowhere}`, "--yes"],
      ["purge", "--instance", "alcove-nosuchname", "--yes"],
      ["restore", "--data-dir", nowhere],
    ]) {
      const result = await run(...args);
      expect([result.code, result.stdout]).toEqual([3, ""]);
      expect(result.stderr).toMatch(/there is no data directory|nothing of an installation nosuchname/);
    }
    await expect(readdir(nowhere)).rejects.toThrow("ENOENT");
  });
});

describe("serve", () => {
  test("a configuration that is wrong ends with 78 and names the key", async () => {
    const result = await run("serve", "--port", "much");
    expect(result.code).toBe(78);
    expect(result.stderr).toContain('server.port is "much" (--port)');
  });

  test("what stops a start is told with its file or port and a way out", async () => {
    const damaged = path.join(dir, "damaged");
    await mkdir(damaged);
    await writeFile(path.join(damaged, "alcove.db"), "no database, but text".repeat(1_000));
    const start = (...args: string[]) => run("serve", "--provider", "mock", ...args);
    const database = await start("--port", "0", "--data-dir", damaged);
    expect(database.stderr).toContain(`the database ${path.join(damaged, "alcove.db")} is damaged`);
    const below = path.join(damaged, "alcove.db", "data");
    const nowhere = await start("--port", "0", "--data-dir", below);
    expect(nowhere.stderr).toContain(`the data directory ${below} cannot be made or written to`);
    const other = createServer();
    await once(other.listen(0, "127.0.0.1"), "listening");
    const { port } = other.address() as AddressInfo;
    const busy = await start("--port", String(port), "--data-dir", path.join(dir, "busy"));
    other.close();
    expect(busy.stderr).toContain(`127.0.0.1:${port} is taken by another program`);
    expect([database.code, nowhere.code, busy.code]).toEqual([1, 1, 1]);
  });

  test("reports where it is, runs the client's commands and ends with 0 on SIGTERM", async () => {
    const service = startCli(
      ["serve", "--port", "0", "--data-dir", path.join(dir, "data"), "--provider", "mock"],
      {
        cwd: dir,
      },
    );
    const ended = finish(service);
    let report = "";
    while (!report.includes("Next")) report += String((await once(service.stdout, "data"))[0]);
    const url = /http:\/\/127\.0\.0\.1:\d+/.exec(report)?.[0] ?? "";
    expect(report).toContain("SIMULATES");
    expect(report).toContain(`export ALCOVE_URL=${url}\n`);
    expect(report).not.toContain("ALCOVE_API_KEY");
    try {
      const cli = (...args: string[]) => runCli(args, { url, cwd: dir });
      const id = (await cli("spawn", "-q")).stdout.trim();
      expect(id).toMatch(/^sb-[a-z0-9]{12}$/);
      expect(await cli("exec", id, "echo out; echo err >&2; exit 4")).toEqual({
        code: 4,
        stdout: "out\n",
        stderr: "err\n",
      });
      await writeFile(path.join(dir, "file"), "content");
      expect((await cli("cp", "-q", "file", `${id}:/workspace/there`)).code).toBe(0);
      expect((await cli("exec", id, "cat /workspace/there")).stdout).toBe("content");
      expect((await cli("cp", "-q", `${id}:/workspace/there`, "back")).code).toBe(0);
      expect(await readFile(path.join(dir, "back"), "utf8")).toBe("content");
      expect((await cli("extend", id, "2h")).stdout).toContain(`${id} ends in 2h`);
      await mkdir(path.join(dir, "beside"), { recursive: true });
      const there = await cli("image", "import", "beside", "there:1", "--data-dir", "data");
      expect(there.stderr).toContain(`stored below ${path.join(dir, "data")}\n`);
      expect(there.stderr).not.toContain("another data directory");
      const elsewhere = await cli("image", "import", "beside", "elsewhere:1", "--data-dir", "other");
      expect(elsewhere.stderr).toContain(`the service at ${url} uses another data directory`);
      expect((await cli("kill", "--all")).stdout).toBe(`${id}\n`);
      expect((await cli("exec", id, "true")).code).toBe(125);
    } finally {
      service.kill("SIGTERM");
    }
    expect((await ended).code).toBe(0);
  });
});
