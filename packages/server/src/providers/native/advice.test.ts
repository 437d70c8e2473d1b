import { expect, it } from "vitest";
import { ProviderError } from "../../ports/index.ts";
import { LauncherFailure } from "../launcher/index.ts";
import { adviceFor, lackedRoom, toldFailure } from "./advice.ts";

it("a control group that is busy is not told as one that may not be made", async () => {
  const told = (errno: number) => adviceFor(new LauncherFailure("cgroup", "it failed", errno));
  expect(await told(16)).toMatch(/it failed; what is in that control group does not end/);
  expect(await told(13)).toContain("Delegate=yes");
  expect(await told(22)).toMatch(/it failed; the group above the sandboxes' may allow less: see its limits$/);
});

it("says what to raise where a process may have too few files open", async () => {
  const failure = new LauncherFailure("descriptors", "dup: Invalid argument (os error 22)", 22);
  expect(await adviceFor(failure)).toContain("LimitNOFILE=");
});

it("a launcher that said nothing may be asked again; one that cannot be started is to be built", async () => {
  const died = new LauncherFailure("serve", "the launcher ended with SIGKILL", undefined, { died: true });
  expect(await toldFailure(died)).toMatchObject({
    code: "unavailable",
    retryAfterS: 5,
    message: "the launcher ended with SIGKILL; the next request starts it again",
  });
  const late = new LauncherFailure("serve", "the launcher did not answer within 25000 ms", undefined, {
    unanswered: true,
  });
  const told = await toldFailure(late);
  expect(told).toMatchObject({ code: "unavailable", retryAfterS: 5 });
  expect(String(told)).not.toContain("build-agent");
  const killed = new LauncherFailure("request", "the process that served it was killed", undefined, {
    unanswered: true,
  });
  expect(await toldFailure(killed)).toMatchObject({
    code: "unavailable",
    retryAfterS: 5,
    message: "native: the process that served it was killed; try again",
  });
  const missing = new LauncherFailure("serve", "alcove-launch cannot be started: ENOENT");
  expect(await toldFailure(missing)).toMatchObject({
    code: "provider_error",
    message: expect.stringContaining("build-agent.mjs"),
  });
});

it("want of a descriptor of the service's own is told as what passes", async () => {
  const lacking = Object.assign(new Error("EMFILE: too many open files, open '/proc/self/cgroup'"), {
    code: "EMFILE",
  });
  for (const failure of [lacking, new ProviderError("mkfs.ext4 cannot be started", { cause: lacking })])
    expect(await toldFailure(failure)).toMatchObject({
      code: "unavailable",
      retryAfterS: 5,
      message: `native sandboxes cannot be made now: ${failure.message}; the service has no file descriptor left: raise LimitNOFILE= in its unit, or ulimit -n`,
    });
  const cause = Object.assign(new Error("spawn alcove-launch EAGAIN"), { code: "EAGAIN" });
  const crowded = new LauncherFailure("serve", "it cannot be started", undefined, {
    cause,
    unanswered: true,
  });
  expect(await toldFailure(crowded)).toMatchObject({
    code: "unavailable",
    message: expect.stringMatching(
      /^native sandboxes cannot be made now: it cannot be started; .*room for a process$/,
    ),
  });
  const other = new Error("another");
  expect(await toldFailure(other)).toBe(other);
});

it("a full disk is told as one, not as something that the machine refuses", async () => {
  for (const step of ["directory", "disk", "overlay", "record", "files"]) {
    const full = new LauncherFailure(step, "No space left on device (os error 28)", 28);
    expect(lackedRoom(full)).toBe(true);
    expect(await toldFailure(full)).toMatchObject({
      code: "storage_full",
      message: expect.stringMatching(/free space below data_dir$/),
    });
  }
  expect(lackedRoom(Object.assign(new Error("mkdir"), { code: "ENOSPC" }))).toBe(true);
  expect(lackedRoom(new LauncherFailure("disk", "Operation not permitted (os error 1)", 1))).toBe(false);
  // The limit of namespaces ends so too.
  expect(lackedRoom(new LauncherFailure("clone", "No space left on device (os error 28)", 28))).toBe(false);
});
