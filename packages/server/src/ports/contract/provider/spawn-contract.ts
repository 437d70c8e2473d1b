import { expect, it } from "vitest";
import { randomIds } from "../../../platform/random-ids.ts";
import { NotFound, RuntimeGone } from "../../index.ts";
import { type ContractHarness, run, soon } from "./harness.ts";

/** How runtimes are made and removed, whatever the way to their agents. */
export function spawnContract(harness: ContractHarness): void {
  it("check() finds the provider healthy", async () => {
    const check = await harness.provider.check(soon());
    expect(check).toMatchObject({ healthy: true });
    expect(Array.isArray(check.notes)).toBe(true);
  });

  it("spawn() makes a sandbox that runs commands and that inventory() lists with its binding", async () => {
    const { runtimeId, sandboxId, operations } = await harness.spawn();
    expect((await run(operations, "echo hello")).stdout).toBe("hello\n");
    const listed = { runtimeId, sandboxId, state: "running" };
    expect(await harness.provider.inventory(soon())).toContainEqual(expect.objectContaining(listed));
  });

  it("destroy() removes a runtime, and does so twice and for one never seen", async () => {
    const { runtimeId, operations } = await harness.spawn();
    await harness.provider.destroy(runtimeId, soon());
    await harness.provider.destroy(runtimeId, soon());
    await harness.provider.destroy(randomIds.runtimeId(), soon());
    expect(() => harness.provider.sandbox(runtimeId)).toThrow(RuntimeGone);
    await expect(operations.execs.list(soon())).rejects.toThrow(RuntimeGone);
    await expect(harness.provider.adopt(runtimeId, soon())).rejects.toThrow(RuntimeGone);
  });

  it("two destroys of one runtime at once both resolve", async () => {
    const { runtimeId } = await harness.spawn();
    await Promise.all([
      harness.provider.destroy(runtimeId, soon()),
      harness.provider.destroy(runtimeId, soon()),
    ]);
  });

  it("spawn() of an unknown image throws NotFound that names the image and leaves nothing", async () => {
    const spec = harness.spec({ image: "no-such-image:nowhere" });
    const failure = await harness.provider.spawn(spec, soon(30_000)).catch((error: unknown) => error);
    expect(failure).toBeInstanceOf(NotFound);
    expect(String(failure)).toContain("no-such-image");
    await harness.provider.destroy(spec.runtimeId, soon());
  });

  it("five spawns at once all succeed and do not see each other's files", async () => {
    const runtimes = await Promise.all(Array.from({ length: 5 }, () => harness.spawn()));
    const answers = await Promise.all(
      runtimes.map(async ({ operations, sandboxId }) => {
        await run(operations, `echo ${sandboxId} >> /workspace/own`);
        return (await run(operations, "cat /workspace/own")).stdout.trim();
      }),
    );
    expect(answers).toEqual(runtimes.map((runtime) => runtime.sandboxId));
  });

  it("a second spawn() of one runtime makes nothing: it is the first one, under way or done", async () => {
    const spec = harness.spec();
    harness.own(spec.runtimeId);
    const both = [harness.provider.spawn(spec, soon(30_000)), harness.provider.spawn(spec, soon(30_000))];
    const [first, second] = await Promise.all(both);
    expect(second).toEqual(first);
    const operations = harness.provider.sandbox(spec.runtimeId);
    await run(operations, "echo first >/workspace/own");
    expect(await harness.provider.spawn(spec, soon(30_000))).toEqual(first);
    const again = harness.provider.sandbox(spec.runtimeId);
    expect((await run(again, "cat /workspace/own")).stdout).toBe("first\n");
    const listed = (await harness.provider.inventory(soon())).filter(
      ({ runtimeId }) => runtimeId === spec.runtimeId,
    );
    expect(listed).toHaveLength(1);
  });

  it("a spawn aborted at any point leaves nothing once destroy() has resolved", async () => {
    const startedAt = performance.now();
    await harness.spawn();
    const spawnMs = performance.now() - startedAt;
    for (const part of [0, 0.2, 0.4, 0.6, 0.8]) {
      const spec = harness.spec();
      harness.own(spec.runtimeId);
      const signal = AbortSignal.timeout(Math.floor(spawnMs * part));
      await harness.provider.spawn(spec, { signal }).catch((error: unknown) => {
        expect(signal.aborted, String(error)).toBe(true);
      });
      await harness.provider.destroy(spec.runtimeId, soon());
      const left = await harness.provider.inventory(soon());
      expect(left.map((entry) => entry.runtimeId)).not.toContain(spec.runtimeId);
    }
  });

  it("a spawn whose signal had aborted rejects with the signal's reason", async () => {
    const reason = new Error("not wanted any more");
    const spec = harness.spec();
    harness.own(spec.runtimeId);
    await expect(harness.provider.spawn(spec, { signal: AbortSignal.abort(reason) })).rejects.toBe(reason);
  });
}
