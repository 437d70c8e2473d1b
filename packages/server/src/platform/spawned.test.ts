import { spawn } from "node:child_process";
import { once } from "node:events";
import { expect, test } from "vitest";
import { withoutDescriptors } from "../../test/support/without-descriptors.ts";
import { spawned } from "./spawned.ts";

test("a child has its pipes once it runs, and one that cannot be started says why", async () => {
  const echo = await spawned(spawn("echo", ["a"], { stdio: ["ignore", "pipe", "ignore"] }));
  const closed = once(echo, "close");
  expect(String((await echo.stdout.toArray()).join(""))).toBe("a\n");
  await closed;
  await expect(spawned(spawn("/no/such/program"))).rejects.toMatchObject({ code: "ENOENT" });
  await expect(withoutDescriptors(() => spawned(spawn("true")))).rejects.toMatchObject({ code: "EMFILE" });
});

test("one whose caller left before it ran is ended", async () => {
  const controller = new AbortController();
  const child = spawn("sleep", ["60"]);
  const asked = spawned(child, { signal: controller.signal });
  controller.abort(new Error("left"));
  await expect(asked).rejects.toThrow("left");
  expect(child.signalCode).toBe("SIGKILL");
});
