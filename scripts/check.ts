/** `npm run check`: types, format and lint of TypeScript and Rust, and the direction of imports. Exits 1 when one of them finds something. */
import { spawnSync } from "node:child_process";
import path from "node:path";
import { fileURLToPath } from "node:url";
import { forbiddenImports } from "./import-boundaries.ts";
import { ensureDependencies } from "./setup/dependencies.mjs";

const root = path.resolve(path.dirname(fileURLToPath(import.meta.url)), "..");
/** The minor version of the Rust whose findings count. */
const rustMinor = "95";
const bin = (name: string) => path.join(root, "node_modules", ".bin", name);

function run(title: string, command: string, args: string[]): boolean {
  const result = spawnSync(command, args, { cwd: root, stdio: ["ignore", "inherit", "inherit"] });
  console.log(`${result.status === 0 ? "ok    " : "FAILED"} ${title}`);
  return result.status === 0;
}

/**
 * The Rust sources. Another toolchain than the one they were written with formats and warns differently: what it finds is
 * shown and fails nothing.
 */
function rust(): boolean[] {
  const agent = path.join(root, "agent");
  const benchProgram = path.join(root, "bench", "floor", "Cargo.toml");
  const cargo = (args: string[], quiet = false) =>
    spawnSync("cargo", args, {
      cwd: agent,
      encoding: "utf8",
      stdio: ["ignore", "pipe", quiet ? "pipe" : "inherit"],
    });
  const tools = [
    { title: "Rust format (rustfmt)", version: "fmt", args: ["fmt", "--all", "--check"] },
    {
      title: "Rust lint (clippy)",
      version: "clippy",
      args: ["clippy", "--quiet", "--workspace", "--all-targets", "--", "--deny", "warnings"],
    },
    {
      title: "Rust format of the bench's program",
      version: "fmt",
      args: ["fmt", "--manifest-path", benchProgram, "--check", "--", "--config-path", agent],
    },
    {
      title: "Rust lint of the bench's program",
      version: "clippy",
      args: ["clippy", "--quiet", "--manifest-path", benchProgram, "--", "--deny", "warnings"],
    },
  ];
  const compiler = /\b1\.(\d+)/.exec(cargo(["--version"], true).stdout ?? "")?.[1];
  return tools.map(({ title, version, args }) => {
    if (compiler === undefined || cargo([version, "--version"], true).status !== 0) {
      console.log(
        `skip   ${title}: ${compiler === undefined ? "cargo" : `cargo ${version}`} is not installed`,
      );
      return true;
    }
    const { status, stdout } = cargo(args);
    const binding = compiler === rustMinor;
    if (status !== 0) console.log(stdout);
    const other = binding ? "" : ` (Rust 1.${compiler} is not the 1.${rustMinor} that binds)`;
    console.log(`${status === 0 ? "ok    " : binding ? "FAILED" : "note  "} ${title}${other}`);
    return status === 0 || !binding;
  });
}

// After a pull the lock file may name packages that are not here; types of theirs would be errors in our files.
if (!(await ensureDependencies(root, { dev: true }))) process.exit(1);

const findings = await forbiddenImports(root);
for (const finding of findings) console.log(finding);
console.log(`${findings.length === 0 ? "ok    " : "FAILED"} import boundaries`);

const results = [
  findings.length === 0,
  run("types (tsc)", bin("tsc"), ["-p", "."]),
  run("format and lint (biome)", bin("biome"), ["check", "--error-on-warnings", "."]),
];
results.push(...rust());
process.exit(results.every(Boolean) ? 0 : 1);
