import { describe, expect, it } from "vitest";
import { PullTurns } from "./pull-turns.ts";

const never = new AbortController().signal;

/** Pulls that each last until the test ends them, in the order in which they began. */
function pulls(most: number, timeoutMs = 60_000) {
  const turns = new PullTurns({ most, timeoutMs });
  const began: string[] = [];
  const ends = new Map<string, () => void>();
  const ask = (image: string, owner: string, signal = never) =>
    turns.run(image, { owner, signal }, async (inTime) => {
      began.push(image);
      const end = Promise.withResolvers<void>();
      ends.set(image, end.resolve);
      inTime.addEventListener("abort", () => end.reject(inTime.reason), { once: true });
      await end.promise;
      return image;
    });
  /** Ends one, and lets who waits for its place begin. */
  const end = async (image: string, asked: Promise<string>) => {
    await new Promise(setImmediate);
    ends.get(image)?.();
    expect(await asked).toBe(image);
    await new Promise(setImmediate);
  };
  return { began, ask, end };
}

describe("PullTurns", () => {
  it("lets so many begin, and one owner alone not the last", async () => {
    const { began, ask, end } = pulls(3);
    const [first] = ["a1", "a2", "a3", "a4"].map((image) => ask(image, "a"));
    void ask("b1", "b");
    await new Promise(setImmediate);
    expect(began).toEqual(["a1", "a2", "b1"]);
    await end("a1", first as Promise<string>);
    expect(began).toEqual(["a1", "a2", "b1"]);
  });

  it("gives turns by owner, first in first out within one", async () => {
    const { began, ask, end } = pulls(1);
    const asked = new Map<string, Promise<string>>();
    for (const image of ["a1", "a2", "a3", "b1", "b2", "c1"]) asked.set(image, ask(image, image.slice(0, 1)));
    const order = ["a1", "a2", "b1", "c1", "a3", "b2"];
    for (const image of order) await end(image, asked.get(image) as Promise<string>);
    expect(began).toEqual(order);
  });

  it("goes on with the next when one fails, and when one that waits leaves", async () => {
    const { began, ask, end } = pulls(1);
    const turns = new PullTurns({ most: 1, timeoutMs: 60_000 });
    const failing = turns.run("x", { owner: "", signal: never }, () => Promise.reject(new Error("broken")));
    await expect(failing).rejects.toThrow("broken");
    expect(await turns.run("y", { owner: "", signal: never }, async () => "pulled")).toBe("pulled");

    const [first, leaving] = [ask("one", "a"), new AbortController()];
    const left = ask("two", "a", leaving.signal);
    const third = ask("three", "a");
    await new Promise(setImmediate);
    const reason = new Error("left");
    leaving.abort(reason);
    await expect(left).rejects.toBe(reason);
    await end("one", first);
    await end("three", third);
    expect(began).toEqual(["one", "three"]);
  });

  it("bounds a pull and the wait before it, each with its key in what is said", async () => {
    const { ask } = pulls(1, 30);
    const slow = ask("slow", "a");
    const waiting = new PullTurns({ most: 1, timeoutMs: 30 });
    void waiting.run("first", { owner: "a", signal: never }, () => new Promise(() => undefined));
    const second = waiting.run("second", { owner: "b", signal: never }, async () => "never");
    await Promise.all([
      expect(slow).rejects.toMatchObject({
        code: "unavailable",
        message: 'image "slow" was not pulled within 0.03 s (images.pull_timeout)',
      }),
      expect(second).rejects.toMatchObject({
        code: "unavailable",
        message: expect.stringMatching(/"second" was not pulled, no turn came .* \(images.max_pulls\)/),
      }),
    ]);
  });
});
