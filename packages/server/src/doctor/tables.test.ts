import { expect, it } from "vitest";
import { tablesFor } from "./tables.ts";

const enough = { sandboxes: 100, pidsEach: 512, pidMax: 4_194_304, openFiles: 65_536 };

it("a machine with room for every sandbox that may be there is fine", () => {
  expect(tablesFor(enough)).toMatchObject({ level: "ok" });
  expect(tablesFor({ ...enough, sandboxes: 0, pidMax: 1 })).toMatchObject({ level: "ok" });
});

it("too few process numbers or descriptors are told with the way out", () => {
  expect(tablesFor({ ...enough, pidMax: 32_768 })).toMatchObject({
    level: "warn",
    advice: expect.stringContaining("kernel.pid_max"),
  });
  expect(tablesFor({ ...enough, openFiles: 700 })).toMatchObject({
    level: "warn",
    message: expect.stringContaining("712 descriptors"),
    advice: expect.stringContaining("LimitNOFILE=712"),
  });
});
