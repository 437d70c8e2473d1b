import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import path from "node:path";
import { afterAll, beforeAll, expect, it, vi } from "vitest";
import { describeWith } from "../test/support/requirements.ts";
import { loadConfig } from "./config/load.ts";
import { diagnose } from "./doctor.ts";
import { silentLogger } from "./platform/logger.ts";

vi.mock("./providers/launcher/find-program.ts", async (original) => {
  const { findProgram } = await original<typeof import("./providers/launcher/find-program.ts")>();
  return { findProgram: async (name: string) => (name === "slirp4netns" ? undefined : findProgram(name)) };
});

await describeWith(["root", "agent", "launcher", "native"], "doctor without slirp4netns", () => {
  let dataDir: string;
  beforeAll(async () => {
    dataDir = await mkdtemp(path.join(tmpdir(), "alcove-doctor-"));
  });
  afterAll(() => rm(dataDir, { recursive: true }));

  it("a default provider whose network cannot be made does not work, and nothing is well", {
    timeout: 60_000,
  }, async () => {
    const diagnosisOf = (networkMode: string) =>
      diagnose({
        config: loadConfig({
          env: {},
          cwd: dataDir,
          overrides: new Map(
            Object.entries({
              data_dir: dataDir,
              "providers.default": "native",
              "providers.native.network_mode": networkMode,
              "server.port": "0",
            }).map(([key, text]) => [key, { text, source: "the test" }]),
          ),
        }),
        env: process.env,
        logger: silentLogger,
      });
    const [outbound, none] = [await diagnosisOf("outbound"), await diagnosisOf("none")];
    expect(outbound.providers.find(({ name }) => name === "native")).toMatchObject({
      works: false,
      error: expect.stringContaining("apt-get install slirp4netns"),
      default: true,
    });
    expect(outbound.ok).toBe(false);
    expect(none.providers.find(({ name }) => name === "native")).toMatchObject({
      works: true,
      default: true,
    });
    expect(none.machine.filter(({ level }) => level === "fail")).toEqual([]);
    expect(none.ok).toBe(true);
  });
});
