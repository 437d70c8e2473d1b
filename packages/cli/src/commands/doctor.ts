import type { Diagnosis, DoctorCheck } from "@alcove/server/doctor";
import { interruptSignal } from "../context.ts";
import { ExitWith, exitCodes } from "../exit-codes.ts";
import { installedRelease } from "../release.ts";
import { printJson } from "../terminal/output.ts";
import { printable } from "../terminal/printable.ts";
import { Progress } from "../terminal/progress.ts";
import { type ConfigFlags, loadLocalConfig } from "./load-config.ts";

/** Exits 1 when no provider that isolates works here, the default one does not, or something stands in the way of a start. */
export async function doctor(flags: ConfigFlags & { json?: boolean }): Promise<void> {
  const { config } = await loadLocalConfig(flags);
  using progress = new Progress("looking at this machine", { quiet: flags.json === true });
  const [{ diagnose }, { createLogger }] = await Promise.all([
    import("@alcove/server/doctor"),
    import("@alcove/server/logger"),
  ]);
  const logger = await createLogger({ level: "silent", format: "json" });
  // A signal ends it once what is being tried is taken away.
  using interrupt = interruptSignal();
  const diagnosis = await diagnose({
    config,
    env: process.env,
    logger,
    installed: installedRelease() !== undefined,
    signal: interrupt.signal,
  }).catch((error: unknown) => {
    throw interrupt.signal.aborted ? new ExitWith(exitCodes.interrupted) : error;
  });
  progress[Symbol.dispose]();
  if (flags.json) printJson(diagnosis);
  else process.stdout.write(diagnosisText(diagnosis));
  if (!diagnosis.ok) throw new ExitWith(exitCodes.failed);
}

export function diagnosisText(diagnosis: Diagnosis): string {
  const lines = ["This machine", ...diagnosis.machine.flatMap(checkLines), "", "Providers"];
  for (const { name, works, error, notes, used, default: isDefault } of diagnosis.providers) {
    const role = isDefault ? ", the default" : used ? ", in use" : works ? ", works but is not enabled" : "";
    lines.push(`  ${works ? "ok  " : "no  "}  ${name}${role}`);
    if (error !== undefined) lines.push(`          ${error}`);
    for (const note of notes) lines.push(`          note: ${note}`);
  }
  lines.push("", diagnosis.ok ? "Sandboxes can run here." : verdict(diagnosis));
  return lines.map((line) => `${printable(line)}\n`).join("");
}

function verdict(diagnosis: Diagnosis): string {
  const failed = diagnosis.machine.filter(({ level }) => level === "fail");
  if (failed.length > 0 && failed.every(({ id }) => id === "disk"))
    return "The service starts like this, but refuses spawns on native until there is room.";
  if (failed.length > 0)
    return `${failed.length} of the checks above failed: the service cannot start like this.`;
  if (!diagnosis.providers.some(({ works, isolation }) => works && isolation !== "simulated"))
    return "No provider that isolates works here as it is configured; only mock, a simulation, would.";
  return diagnosis.providers.some((provider) => provider.default)
    ? "The default provider does not work like this: only spawns that name another would."
    : "The default provider cannot be used: the service cannot start like this.";
}

function checkLines({ level, message, advice }: DoctorCheck): string[] {
  return [`  ${level.padEnd(4)}  ${message}`, ...(advice === undefined ? [] : [`          ${advice}`])];
}
