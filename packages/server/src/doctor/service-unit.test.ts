import { spawnSync } from "node:child_process";
import { readFileSync } from "node:fs";
import { expect, it } from "vitest";
import { stopEndsSandboxes } from "./service-unit.ts";

const shows = (killMode: string) => async (unit: string) =>
  `LoadState=${unit === "none.service" ? "not-found" : "loaded"}\nKillMode=${killMode}\n`;

it("a unit that ends everything in its group is told, by cgroup v2 and v1", async () => {
  for (const cgroup of [
    "0::/system.slice/mine.service\n",
    "0::/system.slice/mine.service/service\n",
    "4:memory:/else\n1:name=systemd:/system.slice/mine.service\n0::/\n",
  ]) {
    const told = await stopEndsSandboxes({ cgroup, show: shows("control-group") });
    expect(told).toContain("mine.service has KillMode=control-group");
    expect(await stopEndsSandboxes({ cgroup, show: shows("process") })).toBeUndefined();
    expect(await stopEndsSandboxes({ cgroup, show: async () => undefined })).toContain(
      "mine.service; unless",
    );
  }
});

it("a terminal, a container and a user's session are no unit of ours", async () => {
  for (const cgroup of [
    "0::/\n",
    "0::/user.slice/user-1000.slice/session-3.scope\n",
    "0::/user.slice/user-1000.slice/user@1000.service/app.slice/run-7.scope\n",
    "",
  ])
    expect(await stopEndsSandboxes({ cgroup, show: shows("control-group") })).toBeUndefined();
});

it("the unit that is installed is looked at from a terminal", async () => {
  const ask = (otherwise: string, killMode: string) =>
    stopEndsSandboxes({ cgroup: "0::/\n", otherwise, show: shows(killMode) });
  expect(await ask("alcove.service", "control-group")).toContain("alcove.service has KillMode=control-group");
  expect(await ask("alcove.service", "process")).toBeUndefined();
  expect(await ask("none.service", "control-group")).toBeUndefined();
});

it("the unit that is shipped keeps sandboxes, and is reloaded by the signal that reloads", () => {
  const unit = readFileSync(new URL("../../../../deploy/alcove.service", import.meta.url), "utf8");
  for (const line of ["KillMode=process", "Delegate=yes", "RestartForceExitStatus=SIGHUP"])
    expect(unit.split("\n")).toContain(line);
  const [, command = "false"] = /^ExecReload=\/bin\/sh -c "(.*)"$/m.exec(unit) ?? [];
  const main = spawnSync("/bin/sh", ["-c", `MAINPID=$$ PATH=/nonexistent /bin/sh -c '${command}'`]);
  expect(main.signal).toBe("SIGHUP");
});
