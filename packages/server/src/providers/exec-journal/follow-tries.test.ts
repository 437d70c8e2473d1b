import { expect, it } from "vitest";
import { FollowTries } from "./follow-tries.ts";

let nowMs = 0;
const pauses = (tries: FollowTries, heldMs: number, most = 30) => {
  const found: number[] = [];
  for (let pauseMs = tries.broke(); pauseMs !== undefined && found.length < most; pauseMs = tries.broke()) {
    found.push(pauseMs);
    nowMs += pauseMs;
    tries.begin();
    nowMs += heldMs;
  }
  return found;
};

it("a stream that breaks again and again is followed ever later, and at last no more", () => {
  expect(pauses(new FollowTries(() => nowMs), 900)).toEqual([0, 100, 250, 500, 1_000, 2_000, 4_000, 8_000]);
});

it("one that is cut each time after it held, or that brings something, is followed on", () => {
  expect(pauses(new FollowTries(() => nowMs), 30_000)).toEqual(Array.from({ length: 30 }, () => 0));
  const tries = new FollowTries(() => nowMs);
  expect([tries.broke(), tries.broke(), tries.broke()]).toEqual([0, 100, 250]);
  tries.progress();
  expect(tries.broke()).toBe(0);
});

it("one that is cut at once each time, whatever it brought, is followed ever later, and for ever", () => {
  const tries = new FollowTries(() => nowMs);
  const found = Array.from({ length: 10 }, () => {
    tries.begin();
    tries.progress();
    return tries.broke();
  });
  expect(found).toEqual([0, 100, 250, 500, 1_000, 2_000, 4_000, 8_000, 8_000, 8_000]);
  tries.begin();
  nowMs += 1_000;
  tries.progress();
  expect(tries.broke()).toBe(0);
});
