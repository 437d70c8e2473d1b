import { expect, test } from "vitest";
import { UnconfirmedInput } from "./unconfirmed-input.ts";

test("what has not arrived is sent again, and what has is let go of", () => {
  const input = new UnconfirmedInput();
  input.arrived(0);
  for (let typed = 0; typed < 1_000; typed += 1) input.give(Buffer.from([typed % 256]));
  for (let sent = 0; sent < 600; sent += 1) input.sent();
  input.arrived(400);
  expect(input.heldBytes).toBe(600);
  expect(input.goOnAt(500)).toBe(true);
  const again: number[] = [];
  for (let piece = input.next(); piece !== undefined; piece = input.next()) {
    again.push(...piece);
    input.sent();
  }
  expect(again).toEqual(Array.from({ length: 500 }, (_, index) => (500 + index) % 256));
  input.arrived(1_000);
  expect([input.heldBytes, input.allArrived]).toEqual([0, true]);
  expect(input.goOnAt(999)).toBe(false);
});
