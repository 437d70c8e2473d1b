import { type ChildProcess, execFileSync, spawn } from "node:child_process";
import { once } from "node:events";
import { closeSync, constants, openSync, rmSync, writeSync } from "node:fs";
import { mkdir, mkdtemp, readFile, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import path from "node:path";
import { afterEach, beforeEach, describe, expect, test, vi } from "vitest";
import { cliEntry } from "./testing/run-cli.ts";

// Processes of their own, on a machine that may be busy.
vi.setConfig({ testTimeout: 120_000 });

let dir: string;
let service: ChildProcess | undefined;
const descriptors: number[] = [];
const mounts: string[] = [];
beforeEach(async () => {
  dir = await mkdtemp(path.join(tmpdir(), "alcove-logs-"));
});
afterEach(async () => {
  service?.kill("SIGKILL");
  service = undefined;
  for (const fd of descriptors.splice(0)) closeSync(fd);
  for (const mount of mounts.splice(0)) execFileSync("umount", ["--lazy", mount]);
  await rm(dir, { recursive: true, force: true });
});

/** Starts the service with its standard error where the test wants it. */
async function start(stderr: "pipe" | number, ...flags: string[]) {
  const env: NodeJS.ProcessEnv = {};
  for (const [name, value] of Object.entries(process.env)) if (!name.startsWith("ALCOVE_")) env[name] = value;
  const args = ["serve", "--port", "0", "--provider", "mock", "--data-dir", path.join(dir, "data"), ...flags];
  const child = spawn(process.execPath, [cliEntry, ...args], { env, stdio: ["ignore", "pipe", stderr] });
  service = child;
  const ended = once(child, "exit");
  let report = "";
  while (!report.includes("Next"))
    report += String((await once(child.stdout as NonNullable<typeof child.stdout>, "data"))[0]);
  const url = `${/http:\/\/127\.0\.0\.1:\d+/.exec(report)?.[0]}/api/v1`;
  return { child, ended, url };
}

function open(file: string, flags: number): number {
  const fd = openSync(file, flags);
  descriptors.push(fd);
  return fd;
}

/** A pipe that the test may read, or not. */
function pipe(): number {
  const file = path.join(dir, "pipe");
  execFileSync("mkfifo", [file]);
  return open(file, constants.O_RDWR | constants.O_NONBLOCK);
}

const refused = async (url: string) => (await fetch(`${url}/sandboxes/sb-nothere`)).status;
const live = async (url: string) => (await fetch(`${url}/live`)).status;

for (const format of ["json", "pretty"]) {
  test(`a log reader that stalls holds up neither requests nor the end (${format})`, async () => {
    const { child, ended, url } = await start(pipe(), "--set", `logging.format=${format}`);
    for (let n = 0; n < 400; n++) expect(await refused(url)).toBe(404);
    expect(await live(url)).toBe(200);
    child.kill("SIGTERM");
    expect(await ended).toEqual([0, null]);
  });
}

test("a log reader on a socket that stalls holds up neither requests nor the end", async () => {
  const { child, ended, url } = await start("pipe");
  for (let n = 0; n < 400; n++) expect(await refused(url)).toBe(404);
  expect(await live(url)).toBe(200);
  child.kill("SIGTERM");
  expect(await ended).toEqual([0, null]);
});

test("a log reader that leaves ends nothing", async () => {
  const { child, ended, url } = await start("pipe");
  child.stderr?.destroy();
  for (let n = 0; n < 5; n++) expect(await refused(url)).toBe(404);
  child.kill("SIGTERM");
  expect(await ended).toEqual([0, null]);
});

describe.skipIf(process.getuid?.() !== 0)("on a disk for logs that is full", () => {
  test("calls are answered, nothing ends, and the log goes on once there is space", async () => {
    const disk = path.join(dir, "disk");
    await mkdir(disk);
    execFileSync("mount", ["-t", "tmpfs", "-o", "size=1m", "alcove-test", disk]);
    mounts.push(disk);
    const log = path.join(disk, "log");
    const { O_WRONLY, O_CREAT, O_APPEND } = constants;
    const { child, ended, url } = await start(open(log, O_WRONLY | O_CREAT | O_APPEND));
    const filler = openSync(path.join(disk, "filler"), "a");
    expect(() => {
      for (;;) writeSync(filler, Buffer.alloc(4_096, 1));
    }).toThrow("ENOSPC");
    closeSync(filler);
    const spawned = await fetch(`${url}/sandboxes`, {
      method: "POST",
      body: "{}",
      headers: { "content-type": "application/json" },
    });
    const { id } = (await spawned.json()) as { id: string };
    expect(spawned.status).toBe(201);
    for (let n = 0; n < 60; n++) expect(await refused(url)).toBe(404);
    // Also what no request does is told into the void: an expiry.
    const short = await fetch(`${url}/sandboxes`, {
      method: "POST",
      body: '{"ttl":"100ms"}',
      headers: { "content-type": "application/json" },
    });
    expect(short.status).toBe(201);
    const brief = ((await short.json()) as { id: string }).id;
    await vi.waitUntil(async () => (await fetch(`${url}/sandboxes/${brief}`)).status === 404, {
      timeout: 30_000,
    });
    expect((await fetch(`${url}/sandboxes/${id}`)).status).toBe(200);
    rmSync(path.join(disk, "filler"));
    await vi.waitUntil(async () => (await readFile(log, "utf8")).includes(brief), { timeout: 30_000 });
    child.kill("SIGTERM");
    expect(await ended).toEqual([0, null]);
    const lines = (await readFile(log, "utf8"))
      .split("\n")
      .slice(0, -1)
      .map((line) => JSON.parse(line));
    expect(lines.filter(({ event }) => event === "request").length).toBeGreaterThanOrEqual(62);
  });
});

test("a limit of descriptors below server.max_connections is told at the start, and that none is left meanwhile", async () => {
  const log = path.join(dir, "log");
  const { child, url } = await start(
    open(log, constants.O_WRONLY | constants.O_CREAT | constants.O_APPEND),
    "--set",
    "server.max_connections=2000000000",
  );
  expect(await readFile(log, "utf8")).toContain("server.max_connections is 2000000000, but this process may");
  // Below what it has open already.
  execFileSync("prlimit", ["--pid", String(child.pid), "--nofile=10:"]);
  await vi.waitFor(async () => expect(await readFile(log, "utf8")).toContain("no descriptor is left"), {
    timeout: 60_000,
    interval: 200,
  });
  execFileSync("prlimit", ["--pid", String(child.pid), "--nofile=512:"]);
  expect(await live(url)).toBe(200);
});
