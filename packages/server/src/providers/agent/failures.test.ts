import { expect, it } from "vitest";
import { RuntimeGone } from "../../ports/index.ts";
import { translateDialFailure, translateFailure } from "./failures.ts";

it("a socket that is gone is not told as the end of its sandbox, which may run on", () => {
  const error = translateDialFailure(Object.assign(new Error("connect"), { code: "ENOENT" }), "sb-1");
  expect(error).toBeInstanceOf(RuntimeGone);
  expect(error.message).toBe(
    "sandbox sb-1 has ended, or nothing listens at its agent's socket any more (ENOENT)",
  );
});

it("a program can tell that the sandbox's disk is full from a limit for which waiting helps", () => {
  const error = translateFailure("no_space", "/f: the sandbox's disk is full", { name: "sb-1" });
  expect([error.code, error.details, error.retryAfterS]).toEqual([
    "resource_limit",
    { reason: "disk" },
    undefined,
  ]);
});
