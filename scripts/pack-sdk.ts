/** Packs the SDK as JavaScript with types, for Node 20 and later: `pack-sdk.ts [folder]` leaves an archive there that `npm install` takes. */
import { spawnSync } from "node:child_process";
import {
  copyFileSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  writeFileSync,
} from "node:fs";
import { tmpdir } from "node:os";
import path from "node:path";
import { fileURLToPath } from "node:url";
import { ensureDependencies } from "./setup/dependencies.mjs";

const root = path.resolve(path.dirname(fileURLToPath(import.meta.url)), "..");
const target = path.resolve(process.argv[2] ?? ".");
const tsc = path.join(root, "node_modules", ".bin", "tsc");
// The compiler is none of what the service needs.
if (!(await ensureDependencies(root, { dev: true }))) process.exit(1);
const draft = mkdtempSync(path.join(tmpdir(), "alcove-sdk-"));

function run(program: string, args: string[], cwd: string): string {
  const { status, stdout, stderr, error } = spawnSync(program, args, { cwd, encoding: "utf8" });
  if (status !== 0)
    throw new Error(`${program} ${args.join(" ")}: ${error?.message ?? `${stdout}${stderr}`}`);
  return stdout;
}

function manifest(name: string): { dependencies: Record<string, string> } {
  return JSON.parse(readFileSync(path.join(root, "packages", name, "package.json"), "utf8"));
}

try {
  const options = {
    extends: path.join(root, "tsconfig.json"),
    compilerOptions: {
      target: "es2022",
      // What the oldest Node of `engines` has: the compiler tells of anything newer.
      lib: ["es2023", "esnext.disposable"],
      rootDir: path.join(root, "packages"),
      outDir: draft,
      noEmit: false,
      declaration: true,
      rewriteRelativeImportExtensions: true,
      // Found through node_modules they would count as somebody else's and not be written.
      paths: { "@alcove/wire": [path.join(root, "packages/wire/src/index.ts")] },
      typeRoots: [path.join(root, "node_modules", "@types")],
    },
    include: [],
    files: [path.join(root, "packages/sdk/src/index.ts"), path.join(root, "packages/wire/src/index.ts")],
  };
  // Beside the sources, so that packages are found as they are for them.
  const project = path.join(root, "packages", "sdk", `tsconfig.pack.${process.pid}.json`);
  writeFileSync(project, JSON.stringify(options));
  try {
    run(tsc, ["-p", project], root);
  } finally {
    rmSync(project);
  }
  const files = ["sdk", "wire"].flatMap((part) => {
    const folder = path.join(draft, part, "src");
    return readdirSync(folder).map((file) => path.join(folder, file));
  });
  for (const file of files) {
    const text = readFileSync(file, "utf8");
    // Declarations keep the endings of the sources; the wire's types travel along.
    const own = text
      .replaceAll('"@alcove/wire"', '"../../wire/src/index.js"')
      .replaceAll(/(from "\.[^"]*)\.ts"/g, '$1.js"');
    writeFileSync(file, own);
  }
  const { version } = JSON.parse(readFileSync(path.join(root, "package.json"), "utf8"));
  const { dependencies } = manifest("sdk");
  writeFileSync(
    path.join(draft, "package.json"),
    JSON.stringify({
      name: "@alcove/sdk",
      version,
      license: "Apache-2.0",
      type: "module",
      engines: { node: ">=20.16" },
      exports: { ".": { types: "./sdk/src/index.d.ts", default: "./sdk/src/index.js" } },
      dependencies: { ws: dependencies.ws, typebox: manifest("wire").dependencies.typebox },
    }),
  );
  copyFileSync(path.join(root, "packages", "sdk", "README.md"), path.join(draft, "README.md"));
  mkdirSync(target, { recursive: true });
  const archive = run("npm", ["pack", "--silent", "--pack-destination", target], draft).trim();
  console.log(path.join(target, archive));
} finally {
  rmSync(draft, { recursive: true });
}
