import { readFileSync } from "node:fs";
import { chunks, run, shell, soon } from "../../src/ports/contract/provider/harness.ts";
import type { SandboxOperations } from "../../src/ports/index.ts";
import { compileProbe, probeOutcomes } from "./probe.ts";

export type AttackColumn = "native" | "docker" | "docker on gVisor" | "firecracker, not root";

const page = readFileSync(new URL("../../../../docs/security.md", import.meta.url), "utf8");

/** The table of docs/security.md as far as it is about one provider: attempt to `refused` or `done`. */
export function attackColumn(column: AttackColumn): Record<string, string> {
  const [, text = ""] = /<!-- attack table -->\n+(.*?)\n+<!-- end of attack table -->/s.exec(page) ?? [];
  const [header = [], , ...rows] = text.split("\n").map((line) =>
    line
      .split("|")
      .slice(1, -1)
      .map((cell) => cell.trim()),
  );
  const at = header.indexOf(column);
  return Object.fromEntries(rows.map((cells) => [cells[0]?.replaceAll("`", ""), cells[at]]));
}

/** These ask whether something that is harmless works, or is pretended to. */
const noAttack = new Set(["syncfs-pretended", "core-limit-kept", "linger-pretended"]);

/** Runs the probe as each of the users, with both sets of its attempts. */
export async function attacksAs(
  operations: SandboxOperations,
  users: readonly string[],
): Promise<Record<string, string>> {
  const file = { ...soon(60_000), mode: 0o755 };
  await operations.files.write("/tmp/attacks", chunks(await compileProbe()), file);
  const outcomes: Map<string, string>[] = [];
  for (const user of users)
    for (const set of ["nobody-listens", "--shared"]) {
      const { stdout } = await run(operations, shell(`/tmp/attacks ${set}`, { user }));
      outcomes.push(probeOutcomes(stdout));
    }
  return attackOutcomes(outcomes);
}

/** @param users what the probe printed as each of them. @returns per attempt whether one of them got through. */
function attackOutcomes(users: readonly Map<string, string>[]): Record<string, string> {
  const attempts = [...new Set(users.flatMap((outcomes) => [...outcomes.keys()]))].filter(
    (attempt) => !noAttack.has(attempt),
  );
  const isDone = (attempt: string) => users.some((outcomes) => outcomes.get(attempt) === "ok");
  return Object.fromEntries(attempts.map((attempt) => [attempt, isDone(attempt) ? "done" : "refused"]));
}
