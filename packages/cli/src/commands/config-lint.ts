import { ExitWith, exitCodes } from "../exit-codes.ts";
import { printJson } from "../terminal/output.ts";
import { type ConfigFlags, loadLocalConfig } from "./load-config.ts";

/** Exits 1 when a rule fails; warnings alone exit 0. */
export async function configLint(
  flags: ConfigFlags & { production?: boolean; json?: boolean },
): Promise<void> {
  const { ConfigError, lintConfig } = await import("@alcove/server/config");
  const loaded = await loadLocalConfig(flags).catch((error: unknown) => {
    if (!(error instanceof ConfigError)) throw error;
    if (flags.json) printJson({ ok: false, problems: error.problems, findings: [] });
    else for (const { message } of error.problems) process.stdout.write(`fail  ${message}\n`);
    throw new ExitWith(exitCodes.failed);
  });
  const findings = lintConfig(loaded, { production: flags.production === true });
  const failures = findings.filter(({ level }) => level === "fail").length;
  if (flags.json) printJson({ ok: failures === 0, file: loaded.file ?? null, problems: [], findings });
  else {
    for (const { id, level, message, advice } of findings) {
      process.stdout.write(`${level}  ${id}: ${message}\n      ${advice}\n`);
    }
    const where = loaded.file ?? "the defaults and the environment";
    process.stdout.write(
      `${where}: ${failures} failed, ${findings.length - failures} warnings${flags.production ? " (production)" : ""}\n`,
    );
  }
  if (failures > 0) throw new ExitWith(exitCodes.failed);
}
