import { chmod, mkdtemp, readFile, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, expect, it } from "vitest";
import { agentBinary } from "../../../test/support/agent-binary.ts";
import { describeWith } from "../../../test/support/requirements.ts";
import { silentLogger } from "../../platform/logger.ts";
import { Launcher, LauncherFailure } from "./launcher.ts";

const folders: string[] = [];

afterEach(async () => {
  for (const folder of folders.splice(0)) await rm(folder, { recursive: true, force: true });
});

/** A launcher that is started by a shell script of these lines; the script tells its process number in `pid`. */
async function launcherBy(
  lines: (folder: string) => string,
): Promise<{ launcher: Launcher; folder: string }> {
  const folder = await mkdtemp(join(tmpdir(), "alcove-launcher-"));
  folders.push(folder);
  await chmod(folder, 0o755);
  const binary = join(folder, "launcher");
  await writeFile(binary, `#!/bin/sh\necho $$ >> ${folder}/pids\n${lines(folder)}\n`, { mode: 0o755 });
  return { launcher: new Launcher({ binary, logger: silentLogger }), folder };
}

const nothing = (folder: string) => ({
  dir: join(folder, "no-such-runtime"),
  trash: folder,
  cgroup: null,
  ids: { kind: "single" } as const,
});

await describeWith(["root", "launcher"], "the resident launcher", () => {
  it("refuses a request that it has no process for, and stays", async () => {
    const binary = agentBinary("alcove-launch");
    const { launcher, folder } = await launcherBy(
      (folder) =>
        `cp ${binary} ${folder}/real && chmod 755 ${folder}/real && chmod 777 ${folder}
exec setpriv --reuid 54321 --regid 54321 --clear-groups prlimit --nproc=1:1 ${folder}/real "$@"`,
    );
    await using _ = launcher;
    for (let turn = 0; turn < 3; turn += 1) {
      const refused = await launcher.destroy(nothing(folder)).catch((error: unknown) => error);
      expect(refused).toBeInstanceOf(LauncherFailure);
      expect(refused).toMatchObject({ step: "fork" });
    }
    expect(await started(folder)).toHaveLength(1);
  });

  it("is started anew when it has died, and an undoing that it took along is repeated", async () => {
    const { launcher, folder } = await launcherBy(
      (folder) =>
        `if [ $(wc -l < ${folder}/pids) -eq 1 ]; then read request; exit 3; fi
exec ${agentBinary("alcove-launch")} "$@"`,
    );
    await using _ = launcher;
    await launcher.destroy(nothing(folder));
    expect(await started(folder)).toHaveLength(2);
  });
});

async function started(folder: string): Promise<string[]> {
  return (await readFile(join(folder, "pids"), "utf8")).trim().split("\n");
}
