import { chmod, mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import { checkAgentLibrary } from "./agent-library.ts";

describe("what doctor says of the agent's C library", () => {
  let folder: string;
  let binary: string;
  const agentThat = async (does: string) => {
    await writeFile(binary, `#!/bin/sh\n${does}\n`);
    await chmod(binary, 0o755);
  };
  const told = async (installed = false) =>
    (await checkAgentLibrary({ binary, installed })).map(({ level, message }) => `${level}: ${message}`);

  beforeEach(async () => {
    folder = await mkdtemp(join(tmpdir(), "alcove-agent-library-"));
    binary = join(folder, "alcove-agent");
  });
  afterEach(() => rm(folder, { recursive: true, force: true }));

  it("is musl", async () => {
    await agentThat("echo alcove-agent 1.2.3 protocol [1] musl");
    expect(await told()).toEqual(["ok: the agent holds musl"]);
  });

  it("is glibc, with the way to musl where it is built here", async () => {
    await agentThat("echo alcove-agent 1.2.3 protocol [1] glibc");
    expect(await told()).toEqual([expect.stringMatching(/^ok: .*glibc.*rustup target add .*build-agent/)]);
    expect(await told(true)).toEqual([
      "ok: the agent holds glibc, with which a sandbox starts 0.25 ms later than with musl",
    ]);
  });

  it("is nothing of one that is not there, cannot be run or is older", async () => {
    expect(await told()).toEqual([]);
    await agentThat("exit 1");
    expect(await told()).toEqual([]);
    for (const said of ["1.2.3 protocol [1]", "1.2.3 notmusl", "1.2.3 musl 7"]) {
      await agentThat(`echo alcove-agent ${said}`);
      expect(await told(), said).toEqual([]);
    }
  });
});
