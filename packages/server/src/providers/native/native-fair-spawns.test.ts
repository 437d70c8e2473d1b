import { availableParallelism } from "node:os";
import { afterEach, beforeEach, expect, it, vi } from "vitest";
import { type NativeHome, nativeHome, testImage } from "../../../test/support/native.ts";
import { describeWith } from "../../../test/support/requirements.ts";
import { randomIds } from "../../platform/random-ids.ts";
import { LaunchSite } from "./launch-site.ts";
import type { NativeProvider } from "./native-provider.ts";
import type { ShiftedImages } from "./shifted-images.ts";

const many = 48 + 24 * availableParallelism();

await describeWith(["root", "agent", "launcher", "native", "busybox"], "spawns of several owners", () => {
  let home: NativeHome;
  let provider: NativeProvider;
  beforeEach(async () => {
    home = await nativeHome();
    provider = home.open();
  });
  afterEach(async () => {
    vi.restoreAllMocks();
    await provider[Symbol.asyncDispose]();
    await home.remove();
  });

  const stages: [name: string, durationMs: number, endedAgoMs?: number][] = [];
  const spawn = (ownerId: string, image = testImage, signal = AbortSignal.timeout(100_000)) => {
    const ids = { runtimeId: randomIds.runtimeId(), sandboxId: randomIds.sandboxId() };
    const size = { memoryMb: 16, vcpus: 1, expiresInMs: 600_000 };
    const options = { signal, onStage: (...stage: (typeof stages)[number]) => stages.push(stage) };
    return provider.spawn({ ...ids, ...size, ownerId, image, env: {}, metadata: {} }, options);
  };

  it("what a spawn waits for is a stage of its own, and the launcher's steps are parts of another", async () => {
    await spawn("ann");
    const parts = stages.filter(([name]) => name.startsWith("launch "));
    const others = stages.filter((stage) => !parts.includes(stage));
    expect(others.map(([name]) => name)).toEqual(["wait", "launch", "configure"]);
    expect(parts.map(([name]) => name)).toEqual(
      expect.arrayContaining(["launch request", "launch directory", "launch record", "launch inside"]),
    );
    const [, wholeMs] = others[1] ?? ["", 0];
    const [first, last] = [parts[0], parts.at(-1)];
    expect(last?.[2]).toBeCloseTo(0);
    expect((first?.[1] ?? 0) + (first?.[2] ?? 0)).toBeLessThanOrEqual(wholeMs);
  });

  it("one owner's many leave another's its turn", { timeout: 120_000 }, async () => {
    await spawn("warm-up");
    let ended = 0;
    const theirs = Array.from({ length: many }, () => spawn("greedy").finally(() => ended++));
    await spawn("modest");
    expect(ended).toBeLessThan(many / 2);
    await Promise.all(theirs);
  });

  it("who waits for the copy of an image keeps nobody waiting, and may leave", {
    timeout: 60_000,
  }, async () => {
    const copying = Promise.withResolvers<string>();
    const shifted = { base: 1_879_048_192, of: () => copying.promise } as unknown as ShiftedImages;
    const ready = LaunchSite.prototype.readyToLaunch;
    vi.spyOn(LaunchSite.prototype, "readyToLaunch").mockImplementation(async function (this: LaunchSite) {
      return { ...(await ready.call(this)), shifted };
    });
    const leaving = new AbortController();
    const waits = Array.from({ length: many }, () => spawn("greedy", testImage, leaving.signal));
    const settled = Promise.allSettled(waits);
    await spawn("modest", "host", AbortSignal.timeout(20_000));
    leaving.abort(new Error("left"));
    for (const each of await settled) expect(each).toMatchObject({ reason: { message: "left" } });
    copying.reject(new Error("over"));
  });
});
