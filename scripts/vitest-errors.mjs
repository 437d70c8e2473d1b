// A reporter of vitest for scripts/test.mjs: writes errors that no test owns (a rejection nobody awaited), a line each, to
// the file that UNOWNED_ERRORS_FILE names (no ALCOVE_…, which a service would take for a setting). They fail a run, and vitest's JSON report does not know them.
import { writeFileSync } from "node:fs";

const longestLine = 1_000;

export default class UnownedErrors {
  onTestRunEnd(_modules, errors) {
    const file = process.env.UNOWNED_ERRORS_FILE;
    if (file === undefined) return;
    const lines = errors.map(({ name, message, stack, VITEST_TEST_NAME, VITEST_TEST_PATH }) => {
      const where = [VITEST_TEST_PATH, VITEST_TEST_NAME].filter((part) => part !== undefined).join(": ");
      const text = `unhandled ${name}: ${message} (${where === "" ? "no test" : where}) ${stack ?? ""}`;
      return text.replaceAll(/\s+/g, " ").slice(0, longestLine);
    });
    writeFileSync(file, lines.map((line) => `${line}\n`).join(""));
  }
}
