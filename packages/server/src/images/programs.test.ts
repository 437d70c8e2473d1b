import { expect, test } from "vitest";
import { withoutDescriptors } from "../../test/support/without-descriptors.ts";
import { ProgramMissing, runProgram } from "./programs.ts";
import { tarOfDirectory } from "./tar-directory.ts";

const { signal } = new AbortController();

test("a program that is not installed is told as missing", async () => {
  await expect(runProgram("no-such-program", [], { signal })).rejects.toThrow(ProgramMissing);
  expect(await runProgram("sh", ["-c", "echo a >&2; exit 3"], { signal })).toEqual({
    exitCode: 3,
    stderr: "a",
  });
});

test("a program that cannot be started for want of a descriptor fails whoever asked for it, and nobody else", async () => {
  const asked = withoutDescriptors(() => [
    runProgram("true", [], { signal }),
    tarOfDirectory("/nowhere", { signal }).next(),
  ]);
  const failures = await Promise.allSettled(asked);
  expect(failures).toEqual([
    { status: "rejected", reason: expect.objectContaining({ code: "EMFILE" }) },
    {
      status: "rejected",
      reason: expect.objectContaining({
        code: "provider_error",
        message: "a directory is read with the program tar: spawn tar EMFILE",
      }),
    },
  ]);
});
