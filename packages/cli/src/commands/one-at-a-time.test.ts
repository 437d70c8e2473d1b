import { expect, test } from "vitest";
import { oneAtATime } from "./one-at-a-time.ts";

test("what is asked for while it runs runs once more, after it: the last request has the last word", async () => {
  let setting = "first";
  const applied: string[] = [];
  const reads: PromiseWithResolvers<void>[] = [];
  const reload = oneAtATime(async () => {
    const read = setting;
    const done = Promise.withResolvers<void>();
    reads.push(done);
    await done.promise;
    applied.push(read);
  });
  reload();
  setting = "second";
  reload();
  setting = "third";
  reload();
  expect(reads.length).toBe(1);
  reads[0]?.resolve();
  await expect.poll(() => reads.length).toBe(2);
  reads[1]?.resolve();
  await expect.poll(() => applied).toEqual(["first", "third"]);
  reload();
  await expect.poll(() => reads.length).toBe(3);
});
