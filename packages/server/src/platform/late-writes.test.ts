import { expect, it } from "vitest";
import { LateWrites } from "./late-writes.ts";

it("what cannot be written waits until it can, and is told once", async () => {
  const told: string[] = [];
  const late = new LateWrites((what) => told.push(what));
  let full = true;
  const written: string[] = [];
  const write = (name: string) => async () => {
    if (full) throw new Error("the disk is full");
    written.push(name);
  };
  await late.write("a", write("a"));
  await late.write("b", write("b"));
  await expect(late.again()).rejects.toThrow("the disk is full");
  expect(late.waiting).toBe(2);
  full = false;
  await late.again();
  await late.again();
  expect({ told, written, waiting: late.waiting }).toEqual({
    told: ["a", "b"],
    written: ["a", "b"],
    waiting: 0,
  });
});
