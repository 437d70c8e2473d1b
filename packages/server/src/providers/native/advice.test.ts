import { expect, it } from "vitest";
import { adviceFor } from "./advice.ts";
import { LauncherFailure } from "./launcher.ts";

it("a control group that is busy is not told as one that may not be made", async () => {
  const told = (errno: number) => adviceFor(new LauncherFailure("cgroup", "it failed", errno));
  expect(await told(16)).toMatch(/it failed; what is in that control group does not end/);
  expect(await told(13)).toContain("Delegate=yes");
});
