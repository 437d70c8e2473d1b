import { fileURLToPath } from "node:url";
import { expect, it } from "vitest";
import { runProgram } from "../../../test/support/programs.ts";
import { describeWith } from "../../../test/support/requirements.ts";

const program = fileURLToPath(new URL("../../../../../examples/custom-backend/files.mjs", import.meta.url));

await describeWith(["linux", "bubblewrap"], "file calls of the example backend", () => {
  it("an upload that finds no room leaves nothing", async () => {
    const script = `head -c 3000000 /dev/zero | "$0" "$1" '{"call":"write","path":"/mnt/file"}' 3<<.
whole
.
echo "ended with $?"; ls -A /mnt`;
    const machine = [
      "--ro-bind",
      "/",
      "/",
      "--proc",
      "/proc",
      "--dev",
      "/dev",
      "--size",
      "1048576",
      "--tmpfs",
      "/mnt",
    ];
    const argv = [...machine, "--unshare-all", "sh", "-c", script, process.execPath, program];
    const { stdout } = await runProgram("bwrap", argv, { timeoutMs: 20_000 });
    expect(stdout).toBe("ended with 1\n");
  });
});
