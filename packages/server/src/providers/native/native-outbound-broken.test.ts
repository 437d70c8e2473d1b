import { expect, it, vi } from "vitest";
import { nativeHome } from "../../../test/support/native.ts";
import { OutboundSandboxes } from "../../../test/support/outbound-sandboxes.ts";
import { describeWith } from "../../../test/support/requirements.ts";
import type { NetworkChange } from "../../ports/index.ts";

/** It is there and ends at once: the relay ends with it, before it takes the connection that waits at its socket. */
vi.mock("../launcher/find-program.ts", async (original) => {
  const { findProgram } = await original<typeof import("../launcher/find-program.ts")>();
  return { findProgram: (name: string) => findProgram(name === "slirp4netns" ? "false" : name) };
});

await describeWith(
  ["root", "agent", "launcher", "native"],
  "network outbound with a helper that fails",
  () => {
    it("is a loss of the network, and neither the service nor the sandbox ends of it", async () => {
      await using stack = new AsyncDisposableStack();
      const home = await nativeHome();
      stack.defer(() => home.remove());
      const provider = stack.use(home.open({ networkMode: "outbound" }));
      const told: NetworkChange[] = [];
      stack.defer(provider.onNetwork((_, change) => told.push(change)));
      const sandboxes = new OutboundSandboxes(() => provider);
      const made = [await sandboxes.spawn(), await sandboxes.spawn(), await sandboxes.spawn()];
      await vi.waitFor(() => expect(told).toHaveLength(made.length), { timeout: 10_000 });
      for (const change of told) expect(change).toMatchObject({ state: "lost" });
      for (const { run } of made) expect(await run("echo here")).toBe("here\n");
      expect(await provider.check({ signal: AbortSignal.timeout(15_000) })).toMatchObject({ healthy: false });
      await sandboxes.destroyAll();
    });
  },
);
