import { afterAll, beforeAll, expect, it, vi } from "vitest";
import { type NativeHome, nativeHome } from "../../../test/support/native.ts";
import { OutboundSandboxes } from "../../../test/support/outbound-sandboxes.ts";
import { describeWith } from "../../../test/support/requirements.ts";
import { Unavailable } from "../../ports/index.ts";
import type { NativeProvider } from "./native-provider.ts";

vi.mock("../launcher/find-program.ts", async (original) => {
  const { findProgram } = await original<typeof import("../launcher/find-program.ts")>();
  return { findProgram: async (name: string) => (name === "slirp4netns" ? undefined : findProgram(name)) };
});

await describeWith(["root", "agent", "launcher", "native"], "network outbound without its helper", () => {
  let home: NativeHome;
  let provider: NativeProvider;

  beforeAll(async () => {
    home = await nativeHome();
    provider = home.open({ networkMode: "outbound" });
  });

  afterAll(async () => {
    await provider[Symbol.asyncDispose]();
    await home.remove();
  });

  it("is told with the way out, and sandboxes without a network are made", async () => {
    const sandboxes = new OutboundSandboxes(() => provider);
    const way = "apt-get install slirp4netns";
    const found = await provider.check({ signal: AbortSignal.timeout(15_000) });
    expect(found).toMatchObject({ healthy: true, cannotSpawn: expect.stringContaining(way) });
    const refused = await sandboxes.spawn().catch((error: unknown) => error);
    expect(refused).toBeInstanceOf(Unavailable);
    expect(String(refused)).toContain(way);
    const without = await sandboxes.spawn({ network: "none" });
    expect(await without.run("echo here")).toBe("here\n");
    await sandboxes.destroyAll();
  });
});
