import { mkdir } from "node:fs/promises";
import { tmpdir } from "node:os";
import { expect, it } from "vitest";
import { agentBinary, projectRoot } from "../../../test/support/agent-binary.ts";
import { mustRun, runProgram } from "../../../test/support/programs.ts";
import { describeWith } from "../../../test/support/requirements.ts";

const target = "x86_64-unknown-linux-gnu";

await describeWith(
  ["linux", "agent", "launcher", "busybox", "qemu"],
  "the launcher on Debian 12's kernel",
  () => {
    it("launches, limits and destroys with cgroup v2 and Linux 6.1, rooted, prepared, with copied roots and unprivileged", {
      timeout: 300_000,
    }, async () => {
      await mustRun(
        "cargo",
        ["build", "--release", "--target", target, "-p", "alcove-launch", "--example", "guest-check"].concat(
          "--manifest-path",
          `${projectRoot}/agent/Cargo.toml`,
        ),
        {
          timeoutMs: 110_000,
          env: { ...process.env, RUSTFLAGS: "-C target-feature=+crt-static", CARGO_BUILD_JOBS: "2" },
        },
      );
      const cache = `${projectRoot}/.cache/qemu`;
      await mkdir(cache, { recursive: true });
      const { stdout, stderr, exitCode } = await runProgram(
        "sh",
        [
          `${projectRoot}/agent/alcove-launch/tests/qemu/run.sh`,
          agentBinary("alcove-launch"),
          agentBinary("alcove-agent"),
          `${projectRoot}/agent/target/${target}/release/examples/guest-check`,
          cache,
        ],
        { timeoutMs: 180_000, env: { ...process.env, TMPDIR: tmpdir() } },
      );
      const lines = stdout.split("\n").filter((line) => /^(ok|FAIL|guest:) /.test(line));
      expect(exitCode, `${stdout}\n${stderr}`).toBe(0);
      expect(lines.filter((line) => line.startsWith("FAIL"))).toEqual([]);
      expect(lines.some((line) => line.startsWith("ok host later mounts"))).toBe(true);
      for (const mode of ["rooted", "prepared", "copied", "unprivileged"])
        expect(lines.filter((line) => line.startsWith(`ok ${mode}`)).length).toBeGreaterThan(8);
    });
  },
);
