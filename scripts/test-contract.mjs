// `npm run test:contract`: the provider contract against every provider there is. With --matrix it prints what became of each case
// and fails when one failed or docs/providers.md says otherwise; with --matrix --write that page is written. Parts of files' names
// choose some of the providers.
import { spawnSync } from "node:child_process";
import { globSync, mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import path from "node:path";
import { contractFindings, contractResults, contractTable, writeTable } from "./contract-matrix.mjs";
import { projectRoot } from "./node-runtime.mjs";
import { prepare } from "./setup/prepare.mjs";

await prepare({ dev: true, service: true });
const args = process.argv.slice(2);
const [matrix, write] = ["--matrix", "--write"].map((option) => args.includes(option));
const files = globSync("packages/server/src/providers/*/*.test.ts", { cwd: projectRoot }).filter((file) =>
  readFileSync(path.join(projectRoot, file), "utf8").includes("providerContract("),
);
const named = args.filter((arg) => !arg.startsWith("-"));
const wanted = files.filter((file) => named.length === 0 || named.some((name) => file.includes(name)));
const folder = mkdtempSync(path.join(tmpdir(), "alcove-contract-"));
const results = path.join(folder, "results");
const { status } = spawnSync(
  process.execPath,
  [
    path.join(projectRoot, "node_modules", "vitest", "vitest.mjs"),
    ...["run", "--reporter=default", "--reporter=./scripts/contract-reporter.mjs"],
    ...["--testNamePattern", "provider contract"],
    ...wanted.sort(),
  ],
  {
    cwd: projectRoot,
    stdio: "inherit",
    env: { ...process.env, CONTRACT_RESULTS: results, CONTRACT_WHOLE: "1" },
  },
);
let findings = [];
if (matrix) {
  const found = contractResults(results);
  console.log(`\n✓ passed   – not announced   ✗ failed\n\n${contractTable(found)}\n`);
  if (write) writeTable(found);
  findings = contractFindings(found);
  for (const finding of findings) console.log(finding);
}
rmSync(folder, { recursive: true });
process.exit(status === 0 && findings.length === 0 ? 0 : 1);
