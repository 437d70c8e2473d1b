import { describe, expect, it } from "vitest";
import { SharedPulls } from "./shared-pulls.ts";

const never = new AbortController().signal;

/** Pulls that each last until the test ends them, in the order in which they began. */
function pulls(most: number, timeoutMs = 60_000) {
  const turns = new SharedPulls<string>({ most, timeoutMs });
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

describe("SharedPulls", () => {
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
    const turns = new SharedPulls<string>({ most: 1, timeoutMs: 60_000 });
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
    const waiting = new SharedPulls<string>({ most: 1, timeoutMs: 30 });
    void waiting.run("first", { owner: "a", signal: never }, () => new Promise<string>(() => undefined));
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

  it("begins what several owners want with the first turn of any, once, in one place", async () => {
    const { began, ask, end } = pulls(2);
    const slow = ask("slow", "a");
    const long = ["a1", "a2", "shared"].map((image) => ask(image, "a"));
    const joined = ask("shared", "b");
    await new Promise(setImmediate);
    // The last place is not for an owner who has one.
    expect(began).toEqual(["slow", "shared"]);
    const third = ask("shared", "c");
    await end("shared", joined);
    expect(await Promise.all([long[2], third])).toEqual(["shared", "shared"]);
    await end("slow", slow);
    for (const image of ["a1", "a2"]) await end(image, long.shift() as Promise<string>);
    expect(began).toEqual(["slow", "shared", "a1", "a2"]);
    // Every place is free again.
    const after = ["d1", "e1"].map((image) => ask(image, image));
    await new Promise(setImmediate);
    expect(began.slice(4)).toEqual(["d1", "e1"]);
    for (const image of ["d1", "e1"]) await end(image, after.shift() as Promise<string>);
  });

  it("loses no place to one who leaves while it is given to him", async () => {
    for (let microtasks = 0; microtasks < 40; microtasks++) {
      const shared = new SharedPulls<string>({ most: 1, timeoutMs: 500 });
      const end = Promise.withResolvers<string>();
      const first = shared.run("one", { owner: "a", signal: never }, () => end.promise);
      const leaving = new AbortController();
      const second = shared
        .run("two", { owner: "b", signal: leaving.signal }, async () => "two")
        .catch(() => "left");
      await new Promise(setImmediate);
      end.resolve("one");
      for (let count = 0; count < microtasks; count++) await undefined;
      leaving.abort(new Error("left"));
      await Promise.all([first, second]);
      const third = await shared.run("three", { owner: "c", signal: never }, async () => "three");
      expect(third, `after ${microtasks} microtasks`).toBe("three");
    }
  });

  it("keeps the place of a pull whose first caller has left, and ends it with the last", async () => {
    const { began, ask, end } = pulls(1);
    const leaving = new AbortController();
    const first = ask("one", "a", leaving.signal);
    const second = ask("one", "b");
    const next = ask("two", "c");
    await new Promise(setImmediate);
    leaving.abort(new Error("left"));
    await expect(first).rejects.toThrow("left");
    await new Promise(setImmediate);
    expect(began).toEqual(["one"]);
    await end("one", second);
    await end("two", next);
  });
});
