import { mkdir, mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, expect, it } from "vitest";
import { Conflict, type ExecId } from "../../ports/index.ts";
import { LauncherFailure } from "../launcher/index.ts";
import { ExecGroups } from "./exec-groups.ts";

const execId = "ex-abcdefgh" as ExecId;
let folder: string;
beforeEach(async () => {
  folder = await mkdtemp(join(tmpdir(), "alcove-groups-"));
});
afterEach(() => rm(folder, { recursive: true }));

/** Groups in an ordinary folder, lent by what `lend` says. */
async function failureOf(lend: () => Promise<void>): Promise<unknown> {
  using groups = new ExecGroups({
    cgroup: { version: 2, dirs: [{ controller: "unified", path: folder }] } as never,
    lend,
  });
  return groups.lend(execId, { memoryMb: 16 }).catch((error: unknown) => error);
}

it("a group that cannot be lent is the service's trouble: to be asked again, not an internal error", async () => {
  await mkdir(join(folder, "execs"));
  const died = new LauncherFailure("serve", "the launcher ended with SIGKILL", undefined, { died: true });
  expect(await failureOf(() => Promise.reject(died))).toMatchObject({
    code: "unavailable",
    retryAfterS: 5,
    message: expect.stringContaining("the launcher ended with SIGKILL"),
  });
});

it("what is refused in the domain's own words stays so", async () => {
  await mkdir(join(folder, "execs"));
  const refusal = new Conflict("it is there");
  expect(await failureOf(() => Promise.reject(refusal))).toBe(refusal);
});

it("a sandbox whose groups are gone has ended", async () => {
  expect(await failureOf(async () => undefined)).toMatchObject({ name: "RuntimeGone", code: "unavailable" });
});

it("of starts that want the group of an ended command at once, one gets it and the others are told that it is taken", async () => {
  await mkdir(join(folder, "execs", execId), { recursive: true });
  using groups = new ExecGroups({
    cgroup: { version: 2, dirs: [{ controller: "unified", path: folder }] } as never,
    lend: async () => undefined,
  });
  await groups.adopt();
  const lent = await Promise.allSettled([1, 2, 3].map(() => groups.lend(execId, { memoryMb: 16 })));
  const refused = lent.filter((one) => one.status === "rejected").map(({ reason }) => reason);
  expect(refused).toEqual([expect.any(Conflict), expect.any(Conflict)]);
});
