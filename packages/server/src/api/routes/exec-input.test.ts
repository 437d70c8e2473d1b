import { expect, test } from "vitest";
import { execInput } from "./exec-input.ts";

test.each([
  [{}, undefined],
  [{ tty: true }, { cols: 80, rows: 24 }],
  [{ cols: 100 }, { cols: 100, rows: 24 }],
  [{ rows: 50 }, { cols: 80, rows: 50 }],
  [
    { tty: true, rows: 50 },
    { cols: 80, rows: 50 },
  ],
  [
    { cols: 100, rows: 50 },
    { cols: 100, rows: 50 },
  ],
  [{ tty: false, cols: 100, rows: 50 }, undefined],
])("a terminal is there when any of tty, cols and rows asks for it: %j", (asked, window) => {
  expect(execInput({ command: "true", ...asked }).tty).toEqual(window);
});
