import { execFileSync, spawn } from "node:child_process";
import { existsSync, readFileSync } from "node:fs";
import { mkdir, mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import path from "node:path";
import { fileURLToPath } from "node:url";
import { describe, expect, test } from "vitest";
import { finish } from "./testing/run-cli.ts";

const root = fileURLToPath(new URL("../../..", import.meta.url));
const manager = "/lib/systemd/systemd";
/** Its own processes, mounts and `/run`: whatever is started in it ends with it. */
const apart = ["--mount", "--propagation", "private", "--pid", "--fork", "--mount-proc", "--kill-child"];

const builder: string = path.join(root, "scripts/build-agent.mjs");
const missing = !(await import(builder)).agentIsCurrent() ? "the agent is not built" : cannotRun();

function cannotRun(): string | undefined {
  if (process.getuid?.() !== 0) return "root is needed";
  if (!existsSync(manager)) return "systemd is not installed";
  try {
    execFileSync("systemd-notify", ["--version"], { stdio: "ignore" });
    execFileSync("unshare", [...apart, "mount", "-t", "tmpfs", "none", "/run"], { stdio: "ignore" });
    return undefined;
  } catch (error) {
    return `namespaces or systemd-notify are missing: ${String(error).slice(0, 100)}`;
  }
}

const watchdogS = 8;

/** What the shipped unit says of how the service is watched. */
function unit(dataDir: string, ...more: string[]): string {
  const shipped = readFileSync(path.join(root, "deploy/alcove.service"), "utf8");
  const lines = shipped
    .split("\n")
    .filter((line) => /^(Type|NotifyAccess|KillMode|ExecReload|Restart\w*|TimeoutStopSec)=/.test(line));
  const command = `${path.join(root, "bin/alcove")} serve --port 0 --data-dir ${dataDir} --provider mock ${more.join(" ")}`;
  return ["[Service]", ...lines, `WatchdogSec=${watchdogS}`, `ExecStart=${command}`, ""].join("\n");
}

describe.skipIf(missing !== undefined)(
  `under systemd${missing === undefined ? "" : ` (skipped: ${missing})`}`,
  () => {
    test("a start is done when spawns are taken; a service that stands still is started again", {
      timeout: 180_000,
    }, async () => {
      const dir = await mkdtemp(path.join(tmpdir(), "alcove-systemd-"));
      try {
        expect(unit("x")).toContain("Type=notify\nNotifyAccess=main\n");
        await mkdir(path.join(dir, "systemd/user"), { recursive: true });
        await writeFile(path.join(dir, "systemd/user/alcove.service"), unit(path.join(dir, "data")));
        const wrong = unit(path.join(dir, "data"), "--set", "server.prot=1");
        await writeFile(path.join(dir, "systemd/user/wrong.service"), wrong);
        // The manager of a user is a whole systemd, and needs no machine that was booted with one.
        const script = `
mount -t tmpfs none /run && mkdir -p /run/systemd/system /run/user/0
export XDG_RUNTIME_DIR=/run/user/0 XDG_CONFIG_HOME=${dir}
${manager} --user --unit=basic.target >${dir}/log 2>&1 &
tell() { echo "$1" $(systemctl --user show alcove -p ActiveState,StatusText,NRestarts --value | grep -v '^$'); }
for i in $(seq 100); do systemctl --user is-active basic.target >/dev/null 2>&1 && break; sleep 0.1; done
timeout 60 systemctl --user start alcove; echo "start $?"
tell started
sleep ${watchdogS + 4}
tell lives
main=$(systemctl --user show alcove -p MainPID --value)
# Process 0 would be all that share a group, the tests among them.
[ "$main" -gt 1 ] && kill -STOP "$main"
for i in $(seq 300); do
  [ "$(systemctl --user show alcove -p NRestarts --value)" = 1 ] && [ "$(systemctl --user is-active alcove)" = active ] && break
  sleep 0.2
done
tell again
timeout 60 systemctl --user stop alcove; echo "stop $?"
timeout 60 systemctl --user start wrong
echo wrong $(systemctl --user show wrong -p ActiveState,ExecMainStatus --value)
`;
        const child = spawn("unshare", [...apart, "bash", "-c", script]);
        const { stdout, stderr } = await finish(child);
        const told = stdout.split("\n").map((line) => line.trim());
        expect(told, `${stdout}${stderr}${readFileSync(path.join(dir, "log"), "utf8")}`).toEqual([
          "start 0",
          "started takes spawns on mock 0 active",
          "lives takes spawns on mock 0 active",
          "again takes spawns on mock 1 active",
          "stop 0",
          // Not "activating", which is until the next start.
          "wrong 78 failed",
          "",
        ]);
      } finally {
        await rm(dir, { recursive: true, force: true });
      }
    });
  },
);
