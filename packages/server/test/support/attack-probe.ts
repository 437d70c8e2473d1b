import { readFile } from "node:fs/promises";
import { randomIds } from "../../src/platform/random-ids.ts";
import type { ExecExit, SandboxOperations } from "../../src/ports/index.ts";
import { projectRoot } from "./agent-binary.ts";
import { mustRun } from "./programs.ts";

const soon = (ms = 45_000) => ({ signal: AbortSignal.timeout(ms) });

/** Runs a script with the sandbox's shell and waits for its end. */
export async function runScript(
  operations: SandboxOperations,
  script: string,
  change: { user?: string; timeoutMs?: number } = {},
): Promise<{ output: string; exit: ExecExit | undefined }> {
  const view = await operations.execs.start(
    {
      execId: randomIds.execId(),
      command: script,
      args: [],
      argv: ["/bin/sh", "-c", script],
      env: {},
      stdin: false,
      timeoutMs: 20_000,
      detached: false,
      ...change,
    },
    soon(),
  );
  let output = "";
  let exit: ExecExit | undefined;
  for await (const event of view.events) {
    if (event.type === "output") output += event.data.toString("utf8");
    else exit = event.exit;
  }
  return { output, exit };
}

/** The attempts are a static program, so that they run in every image. */
export async function attackProbe(): Promise<Buffer> {
  const target = "x86_64-unknown-linux-gnu";
  await mustRun(
    "cargo",
    ["build", "--release", "--target", target, "-p", "alcove-launch", "--example", "attack-probe"].concat(
      "--manifest-path",
      `${projectRoot}/agent/Cargo.toml`,
    ),
    {
      timeoutMs: 110_000,
      env: { ...process.env, RUSTFLAGS: "-C target-feature=+crt-static", CARGO_BUILD_JOBS: "2" },
    },
  );
  return readFile(`${projectRoot}/agent/target/${target}/release/examples/attack-probe`);
}
