import { chown, cp, mkdtemp, readFile, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { expect, it, vi } from "vitest";
import { projectRoot } from "../../../test/support/agent-binary.ts";
import { allowed, FarNetwork, farAddress, ownAddress } from "../../../test/support/far-network.ts";
import { nativeHome } from "../../../test/support/native.ts";
import { networkProcesses, OutboundSandboxes } from "../../../test/support/outbound-sandboxes.ts";
import { mustRun, runProgram } from "../../../test/support/programs.ts";
import { describeWith } from "../../../test/support/requirements.ts";
import { busyboxRootfs } from "../../../test/support/tiny-images.ts";
import type { NetworkChange } from "../../ports/index.ts";

const unprivileged = 65_534;
const needs = ["linux", "agent", "launcher", "native-unprivileged", "busybox", "slirp4netns"] as const;
const reach = fileURLToPath(new URL("../../../test/support/programs/reach.py", import.meta.url));

if (process.getuid?.() === 0) {
  await describeWith(["root", ...needs], "network outbound, unprivileged", () => {
    it("is the same for a user without rights", { timeout: 120_000 }, async () => {
      const { dir } = await busyboxRootfs();
      const home = await mkdtemp(join(tmpdir(), "alcove-nobody-"));
      await using network = await FarNetwork.open();
      try {
        await cp(dir, join(home, "rootfs"), { recursive: true, verbatimSymlinks: true });
        await mustRun("chown", ["-hR", `${unprivileged}:${unprivileged}`, home]);
        await chown(home, unprivileged, unprivileged);
        const id = String(unprivileged);
        const file = import.meta.filename.slice(projectRoot.length + 1);
        const vitest = `${projectRoot}/node_modules/vitest/vitest.mjs`;
        const user = ["setpriv", "--reuid", id, "--regid", id, "--clear-groups"];
        const run = [process.execPath, vitest, "run", file, "--cache=false", "--configLoader", "runner"];
        const { exitCode, stdout, stderr } = await runProgram(network.entry, [...user, ...run], {
          timeoutMs: 100_000,
          cwd: projectRoot,
          env: {
            HOME: home,
            TMPDIR: home,
            ALCOVE_TEST_ROOTFS: join(home, "rootfs"),
            PATH: process.env.PATH,
            CI: process.env.CI,
          },
        });
        expect(exitCode, `${stdout}${stderr}`.slice(-6_000)).toBe(0);
        expect(stdout).not.toContain("skipped:");
        // What is closed was not reached; the machine's own servers answered nobody.
        expect(await network.near()).toMatchObject({ tcp: {}, udp: {} });
        expect(Object.keys((await network.far()).tcp)).toEqual([farAddress]);
      } finally {
        await rm(home, { recursive: true, force: true });
      }
    });
  });
} else {
  await describeWith(needs, "network outbound of a user without rights", () => {
    it("reaches what is open and nothing that is closed, and is given again when it is lost", async () => {
      const home = await nativeHome();
      const changes: NetworkChange[] = [];
      const provider = home.open({ networkMode: "outbound", networkAllow: [allowed] });
      provider.onNetwork((_, change) => changes.push(change));
      const sandboxes = new OutboundSandboxes(() => provider);
      try {
        const sandbox = await sandboxes.spawn();
        await sandbox.write("/tmp/reach.py", await readFile(reach));
        const closed = ["10.1.2.3", "169.254.169.254", "198.18.255.2", ownAddress];
        const wanted = { addresses: [farAddress, ...closed], addresses6: ["fd00::2", "::ffff:0:a01:203"] };
        const tryAll = async () =>
          JSON.parse(await sandbox.run(`python3 /tmp/reach.py '${JSON.stringify(wanted)}'`));
        const { [farAddress]: open, ...others } = await tryAll();
        expect(open).toMatchObject({ tcp: `reached ${farAddress}`, udp: `reached ${farAddress}` });
        expect(open["by name"]).toBe(`reached ${farAddress}`);
        expect(JSON.stringify(others)).not.toMatch(/reached|answered/);
        // Frames in it count for nobody.
        expect(await sandbox.run("ip link show tap0")).toContain("qlen 128");
        const before = await networkProcesses(home.dataDir, sandbox.runtimeId);
        for (const { status } of before) expect(status.NoNewPrivs).toBe("1");
        process.kill(before[0]?.pid ?? 0, "SIGKILL");
        await vi.waitFor(() => expect(changes.map(({ state }) => state)).toEqual(["lost", "restored"]), {
          timeout: 10_000,
        });
        expect((await tryAll())[farAddress].tcp).toBe(`reached ${farAddress}`);
      } finally {
        await sandboxes.destroyAll();
        await provider[Symbol.asyncDispose]();
        await home.remove();
      }
    }, 60_000);
  });
}
