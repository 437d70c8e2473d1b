import { createHash, randomUUID } from "node:crypto";
import { existsSync } from "node:fs";
import { mkdir, readFile, rename } from "node:fs/promises";
import { fileURLToPath } from "node:url";
import { projectRoot } from "./agent-binary.ts";
import { mustRun } from "./programs.ts";

/** Builds the static program that tries hostile system calls. @returns its contents. */
export async function compileProbe(): Promise<Buffer> {
  const source = fileURLToPath(new URL("programs/probe.c", import.meta.url));
  const digest = createHash("sha256")
    .update(await readFile(source))
    .digest("hex")
    .slice(0, 16);
  const folder = `${projectRoot}/.cache/test-programs`;
  const program = `${folder}/probe-${digest}`;
  if (!existsSync(program)) {
    await mkdir(folder, { recursive: true });
    const draft = `${program}.${randomUUID()}`;
    await mustRun("gcc", ["-static", "-O1", "-w", "-o", draft, source]);
    await rename(draft, program);
  }
  return readFile(program);
}

/** What the probe printed: attempt to outcome, `ok` or an errno's name. */
export function probeOutcomes(stdout: string): Map<string, string> {
  const outcomes = new Map<string, string>();
  for (const line of stdout.trim().split("\n")) {
    const [name = "", outcome = ""] = line.split(" ");
    outcomes.set(name, outcome);
  }
  return outcomes;
}
