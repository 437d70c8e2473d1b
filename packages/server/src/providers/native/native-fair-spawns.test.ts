import { availableParallelism } from "node:os";
import { expect, it } from "vitest";
import { type NativeHome, nativeHome, testImage } from "../../../test/support/native.ts";
import { describeWith } from "../../../test/support/requirements.ts";
import { randomIds } from "../../platform/random-ids.ts";
import type { NativeProvider } from "./native-provider.ts";

const many = 48 + 24 * availableParallelism();

await describeWith(["root", "agent", "launcher", "native", "busybox"], "spawns of several owners", () => {
  it("one owner's many leave another's its turn", { timeout: 120_000 }, async () => {
    const home: NativeHome = await nativeHome();
    const provider: NativeProvider = home.open();
    const signal = AbortSignal.timeout(100_000);
    const spawn = (ownerId: string) => {
      const ids = { runtimeId: randomIds.runtimeId(), sandboxId: randomIds.sandboxId() };
      const size = { memoryMb: 16, vcpus: 1, expiresInMs: 600_000 };
      return provider.spawn(
        { ...ids, ...size, ownerId, image: testImage, env: {}, metadata: {} },
        { signal },
      );
    };
    try {
      await spawn("warm-up");
      let ended = 0;
      const theirs = Array.from({ length: many }, () => spawn("greedy").finally(() => ended++));
      await spawn("modest");
      expect(ended).toBeLessThan(many / 2);
      await Promise.all(theirs);
    } finally {
      await provider[Symbol.asyncDispose]();
      await home.remove();
    }
  });
});
