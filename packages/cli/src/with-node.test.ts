import { type ChildProcess, spawn } from "node:child_process";
import { once } from "node:events";
import path from "node:path";
import { fileURLToPath } from "node:url";
import { expect, test } from "vitest";

const wrapper = path.resolve(path.dirname(fileURLToPath(import.meta.url)), "../../../scripts/with-node.mjs");

/** @param script what the other Node runs; it says something once it listens. */
async function wrapped(
  script: string,
): Promise<{ child: ChildProcess; said: string; ended: Promise<unknown[]> }> {
  const child = spawn(process.execPath, [wrapper, "--eval", script], {
    stdio: ["ignore", "pipe", "inherit"],
  });
  const ended = once(child, "exit");
  const [said] = await Promise.race([once(child.stdout, "data"), ended]);
  return { child, said: String(said), ended };
}

test.each(["SIGTERM", "SIGHUP"] as const)(
  "%s reaches what runs, whose status is the wrapper's",
  async (signal) => {
    const { child, ended } = await wrapped(
      `process.on("${signal}", () => process.exit(7)); setInterval(() => {}, 1_000); console.log("up")`,
    );
    child.kill(signal);
    expect(await ended).toEqual([7, null]);
  },
);

test("what a signal ends is told as a shell tells it", async () => {
  const { said, child, ended } = await wrapped(`setInterval(() => {}, 1_000); console.log(process.pid)`);
  process.kill(Number(said), "SIGKILL");
  expect(await ended).toEqual([137, null]);
  expect(child.exitCode).toBe(137);
});
