/** `npm run check`: types, format and lint, and the direction of imports. Exits 1 when one of them finds something. */
import { spawnSync } from "node:child_process";
import { existsSync } from "node:fs";
import path from "node:path";
import { fileURLToPath } from "node:url";
import { forbiddenImports } from "./import-boundaries.ts";

const root = path.resolve(path.dirname(fileURLToPath(import.meta.url)), "..");
const bin = (name: string) => path.join(root, "node_modules", ".bin", name);

function run(title: string, command: string, args: string[]): boolean {
  const result = spawnSync(command, args, { cwd: root, stdio: ["ignore", "inherit", "inherit"] });
  console.log(`${result.status === 0 ? "ok    " : "FAILED"} ${title}`);
  return result.status === 0;
}

const missing = ["tsc", "biome"].filter((name) => !existsSync(bin(name)));
if (missing.length > 0) {
  console.log(
    `FAILED the tools for development are missing (${missing.join(", ")}): \`npm install\` or \`npm test\` brings them`,
  );
  process.exit(1);
}

const findings = await forbiddenImports(root);
for (const finding of findings) console.log(finding);
console.log(`${findings.length === 0 ? "ok    " : "FAILED"} import boundaries`);

const results = [
  findings.length === 0,
  run("types (tsc)", bin("tsc"), ["-p", "."]),
  run("format and lint (biome)", bin("biome"), ["check", "--error-on-warnings", "."]),
];
process.exit(results.every(Boolean) ? 0 : 1);
