import { expect, test } from "vitest";
import { ControlFrames } from "./control-frames.ts";

test("those of an hour at once are no flood, nor are ten a second for ever; more are", () => {
  let nowMs = 0;
  const frames = new ControlFrames(() => nowMs);
  for (let n = 0; n < 4_096; n++) expect(frames.count()).toBe(true);
  expect(frames.count()).toBe(false);
  for (let second = 0; second < 10_000; second++) {
    nowMs += 1_000;
    for (let n = 0; n < 10; n++) expect(frames.count()).toBe(true);
  }
  expect(frames.count()).toBe(false);
  nowMs += 24 * 3_600_000;
  for (let n = 0; n < 4_096; n++) expect(frames.count()).toBe(true);
  expect(frames.count()).toBe(false);
});
