import { cp, mkdir, mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { expect, it, vi } from "vitest";
import { nativeHome, testImage } from "../../../test/support/native.ts";
import { OutboundSandboxes } from "../../../test/support/outbound-sandboxes.ts";
import { describeWith } from "../../../test/support/requirements.ts";
import { busyboxRootfs } from "../../../test/support/tiny-images.ts";

await describeWith(
  ["root", "agent", "launcher", "native", "busybox", "slirp4netns"],
  "a network, which is made while its sandbox is furnished",
  () => {
    it("is not what fails where the sandbox cannot be furnished", async () => {
      await using stack = new AsyncDisposableStack();
      const rootfs = await mkdtemp(join(tmpdir(), "alcove-late-"));
      stack.defer(() => rm(rootfs, { recursive: true }));
      await cp((await busyboxRootfs()).dir, rootfs, { recursive: true, verbatimSymlinks: true });
      await rm(join(rootfs, "etc/resolv.conf"), { force: true });
      await mkdir(join(rootfs, "etc/resolv.conf/in-the-way"), { recursive: true });
      vi.stubEnv("ALCOVE_TEST_ROOTFS", rootfs);
      stack.defer(() => void vi.unstubAllEnvs());
      const home = await nativeHome();
      stack.defer(() => home.remove());
      const provider = stack.use(home.open({ networkMode: "outbound" }));
      const sandboxes = new OutboundSandboxes(() => provider);
      // Which of the two is found out first is chance.
      for (let round = 0; round < 8; round += 1)
        await expect(sandboxes.spawn({ image: testImage })).rejects.toThrow(
          /step files: \/etc\/resolv\.conf: Is a directory \(os error 21\)$/,
        );
    });
  },
);
