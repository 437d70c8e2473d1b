import { execFileSync, spawn } from "node:child_process";
import { once } from "node:events";
import { existsSync } from "node:fs";
import { mkdtemp, readFile, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import path from "node:path";
import { createLogger } from "@alcove/server/logger";
import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { Supervisor } from "./supervisor.ts";

let dir: string;
let told: string;
const usualPath = process.env.PATH;
const logger = await createLogger({ level: "silent", format: "json" });

beforeEach(async () => {
  dir = await mkdtemp(path.join(tmpdir(), "alcove-supervisor-"));
  told = path.join(dir, "told");
});
afterEach(async () => {
  process.env.PATH = usualPath;
  await rm(dir, { recursive: true, force: true });
});

/** A systemd-notify that writes down what it is given. */
async function standIn(script = `#!/bin/sh\necho "$NOTIFY_SOCKET $*" >>${told}\n`): Promise<void> {
  await writeFile(path.join(dir, "systemd-notify"), script, { mode: 0o755 });
  process.env.PATH = `${dir}:/usr/bin:/bin`;
}
const lines = async () => (existsSync(told) ? (await readFile(told, "utf8")).trim().split("\n") : []);

test("without a socket nothing is told, and nothing is run", async () => {
  await standIn();
  using supervisor = new Supervisor({ env: { WATCHDOG_USEC: "3000" }, pid: 1, logger });
  supervisor.keepAlive();
  await supervisor.ready("ready");
  expect(await lines()).toEqual([]);
});

test("messages arrive in order; children do not inherit the socket; a watchdog gets three signs in its time", async () => {
  await standIn();
  const env: NodeJS.ProcessEnv = {
    NOTIFY_SOCKET: "@x",
    WATCHDOG_USEC: "300000",
    WATCHDOG_PID: "7",
    HOME: "/",
  };
  using supervisor = new Supervisor({ env, pid: 7, logger });
  expect(env).toEqual({ HOME: "/" });
  void supervisor.ready("takes spawns");
  await supervisor.stopping("ends");
  expect(await lines()).toEqual(["@x READY=1 STATUS=takes spawns", "@x STOPPING=1 STATUS=ends"]);
  supervisor.keepAlive();
  await vi.waitUntil(async () => (await lines()).filter((line) => line === "@x WATCHDOG=1").length >= 3);
});

test("another process's watchdog is left alone, and a systemd-notify that fails or hangs is no failure", async () => {
  await standIn("#!/bin/sh\nexit 1\n");
  const warn = vi.spyOn(logger, "warn");
  const env = { NOTIFY_SOCKET: "/x", WATCHDOG_USEC: "30000", WATCHDOG_PID: "8" };
  using supervisor = new Supervisor({ env, pid: 7, logger });
  supervisor.keepAlive();
  await supervisor.ready("a");
  await supervisor.ready("b");
  expect(warn).toHaveBeenCalledTimes(1);
});

const canBind = ["systemd-notify", "python3"].every((name) => {
  try {
    execFileSync(name, ["--version"], { stdio: "ignore" });
    return true;
  } catch {
    return false;
  }
});

test.skipIf(!canBind)(
  `a real socket hears it from this process${canBind ? "" : " (skipped: no systemd-notify or python3)"}`,
  async () => {
    const socket = path.join(dir, "notify");
    // As systemd does: whose message it is says the kernel.
    const hears = `import os, socket, struct
s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
s.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
s.bind("${socket}")
print("bound", flush=True)
while True:
    data, extra, _, _ = s.recvmsg(4096, 4096)
    pid = next((struct.unpack("3i", d[:12])[0] for _, kind, d in extra if kind == socket.SCM_CREDENTIALS), 0)
    for _, kind, fds in extra:
        if kind == socket.SCM_RIGHTS: [os.close(fd) for fd in struct.unpack("%di" % (len(fds) // 4), fds)]
    print(pid, data.decode().split("\\n"), flush=True)
`.replace("socket.SCM_CREDENTIALS", "2");
    const child = spawn("python3", ["-c", hears], { stdio: ["ignore", "pipe", "inherit"] });
    try {
      let heard = "";
      child.stdout.on("data", (data) => {
        heard += data;
      });
      await vi.waitUntil(() => heard.includes("bound"), { timeout: 10_000 });
      using supervisor = new Supervisor({ env: { NOTIFY_SOCKET: socket }, pid: process.pid, logger });
      await supervisor.ready("takes spawns");
      await vi.waitUntil(() => heard.includes("READY"), { timeout: 10_000 });
      expect(heard).toContain("['READY=1', 'STATUS=takes spawns']");
      if (process.getuid?.() === 0) expect(heard).toContain(`${process.pid} ['READY=1'`);
    } finally {
      child.kill("SIGKILL");
      await once(child, "exit");
    }
  },
);
