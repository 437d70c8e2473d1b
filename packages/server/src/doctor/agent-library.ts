import { execFile } from "node:child_process";
import { promisify } from "node:util";
import type { DoctorCheck } from "./machine.ts";

const deadlineMs = 2_000;

/** Which C library the agent holds. Nothing where it is not built or cannot be run, which the providers tell. docs/native-provider.md */
export async function checkAgentLibrary(options: {
  binary: string;
  /** It came with a package: nothing is built here. */
  installed: boolean;
}): Promise<DoctorCheck[]> {
  const said = await promisify(execFile)(options.binary, ["--version"], {
    timeout: deadlineMs,
    killSignal: "SIGKILL",
  }).then(
    ({ stdout }) => stdout,
    () => "",
  );
  const library = / (musl|glibc)$/.exec(said.trim())?.[1];
  if (library === undefined) return [];
  const way = options.installed
    ? ""
    : `; with the compiler's target for musl there ("rustup target add ${muslTarget()}") "node scripts/build-agent.mjs" builds it anew`;
  const message =
    library === "musl"
      ? "the agent holds musl"
      : `the agent holds glibc, with which a sandbox starts 0.25 ms later than with musl${way}`;
  return [{ id: "agent", level: "ok", message }];
}

function muslTarget(): string {
  return `${process.arch === "arm64" ? "aarch64" : "x86_64"}-unknown-linux-musl`;
}
