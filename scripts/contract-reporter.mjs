// A reporter of vitest: a line for each case of the provider contract, as JSON, at the end of the file that CONTRACT_RESULTS names
// (no ALCOVE_…, which a service would take for a setting). scripts/contract-matrix.mjs reads it.
import { appendFileSync } from "node:fs";

const titleStart = "provider contract: ";

export default class ContractReporter {
  onTestCaseResult(testCase) {
    const file = process.env.CONTRACT_RESULTS;
    const provider = providerOf(testCase);
    if (file === undefined || provider === undefined) return;
    const { state, note } = testCase.result();
    // Skipped for another reason: an opening that failed, a filter.
    if (state === "skipped" && !note?.startsWith("not announced: ")) return;
    const { parent, name: title } = testCase;
    appendFileSync(file, `${JSON.stringify({ provider, group: parent.name, title, state })}\n`);
  }
}

/** Undefined for a test that is none of the contract's, or of a suite that cannot run here, which its title says. */
function providerOf(testCase) {
  for (let { parent } = testCase; parent?.type === "suite"; { parent } = parent)
    if (parent.name.startsWith(titleStart) && !parent.name.includes("(skipped: "))
      return parent.name.slice(titleStart.length);
  return undefined;
}
