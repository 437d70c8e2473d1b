/**
 * `npm run package [-- --out FOLDER] [--only deb|tarball]`: a tarball and a Debian package of this clone, with Node and the built agent, so that
 * whoever installs it needs neither compiler nor npm. The same commit gives the same bytes. docs/operations/install.md
 */
import { spawnSync } from "node:child_process";
import { createHash } from "node:crypto";
import {
  createReadStream,
  existsSync,
  mkdirSync,
  readFileSync,
  renameSync,
  rmSync,
  writeFileSync,
} from "node:fs";
import path from "node:path";
import { fileURLToPath } from "node:url";
import { argumentsOf, refuse } from "./arguments.ts";
import { agentLibrary, buildAgent, findCargo, whyNotMusl } from "./build-agent.mjs";
import { serviceNodeFlags } from "./node-runtime.mjs";
import { type Entry, withFolders } from "./package/archive.ts";
import { bundleKinds, contentsOf } from "./package/contents.ts";
import { compress, debianArchitecture, debianEntries, writeDebianPackage } from "./package/deb.ts";
import { licenseEntries } from "./package/licenses.ts";

/** The Node that is shipped. Raised by hand: the same commit must give the same package. */
const shippedNode = "26.10.0";

const root = path.resolve(path.dirname(fileURLToPath(import.meta.url)), "..");
const usage = `npm run package [-- --out FOLDER] [--only deb|tarball]

A tarball and a Debian package of this clone in dist/, or FOLDER: docs/operations/install.md`;
const { values } = argumentsOf("package", usage, {
  options: { out: { type: "string", default: path.join(root, "dist") }, only: { type: "string" } },
});
if (values.only !== undefined && values.only !== "deb" && values.only !== "tarball")
  refuse("package", `--only ${values.only}: expected deb or tarball`);
const out = path.resolve(values.out);

const { version } = JSON.parse(readFileSync(path.join(root, "package.json"), "utf8")) as { version: string };
const agentVersion = /^version = "(.+)"$/m.exec(
  readFileSync(path.join(root, "agent/Cargo.toml"), "utf8"),
)?.[1];
if (agentVersion !== version)
  throw new Error(`package.json says version ${version}, agent/Cargo.toml ${agentVersion}`);
const { arch } = process;
debianArchitecture(arch);

await buildAgent({ log: (line) => console.error(line) });
const library = agentLibrary();
if (library !== "musl") console.error(`package: the programs hold glibc instead of musl: ${whyNotMusl()}`);
for (const kind of bundleKinds) run(process.execPath, ["scripts/bundle.mjs", kind]);
const commit = git("rev-parse", "HEAD");
const changed = git("status", "--porcelain") !== "";
if (changed) console.error("package: the work tree differs from its commit, and so does what is packed");
const seconds = Number(process.env.SOURCE_DATE_EPOCH ?? git("log", "-1", "--format=%ct"));
const mtime = new Date(seconds * 1_000);

const release = {
  version,
  commit: changed ? `${commit}+changes` : commit,
  node: shippedNode,
  agentLibrary: library,
};
const contents = withFolders([
  ...contentsOf(root, { node: await nodeBinary(), serviceNodeFlags: serviceNodeFlags() }),
  ...licenseEntries(root, { cargo: findCargo().cargo, nodeVersion: shippedNode, library }),
  {
    path: "release.json",
    type: "file",
    mode: 0o644,
    content: Buffer.from(`${JSON.stringify(release, null, 2)}\n`),
  },
]);

mkdirSync(out, { recursive: true });
const name = `alcove-${version}-linux-${arch}`;
const tarball = path.join(out, `${name}.tar.gz`);
const debian = path.join(out, `alcove_${version}_${debianArchitecture(arch)}.deb`);
// Last, so that whoever was interrupted while unpacking has an installation that says so.
const complete: Entry = { path: `${name}/.complete`, type: "file", mode: 0o644, content: Buffer.alloc(0) };
const inFolder = withFolders(contents.map((entry) => ({ ...entry, path: `${name}/${entry.path}` })));
const writers = {
  tarball: { file: tarball, write: (draft: string) => compress([...inFolder, complete], draft, mtime) },
  deb: {
    file: debian,
    write: (file: string) =>
      writeDebianPackage({ file, root, entries: debianEntries(root, contents), version, arch, mtime }),
  },
};
const wanted = values.only === undefined ? [writers.tarball, writers.deb] : [writers[values.only]];
await Promise.all(wanted.map(({ file, write }) => written(file, write)));
const files = wanted.map(({ file }) => file);
const sums = await Promise.all(files.map(async (file) => `${await sha256(file)}  ${path.basename(file)}\n`));
writeFileSync(path.join(out, "SHA256SUMS"), sums.join(""));
console.log(files.join("\n"));

/** Under its name only once it is whole. */
async function written(file: string, write: (draft: string) => Promise<void>): Promise<void> {
  const draft = `${file}.${process.pid}.new`;
  try {
    await write(draft);
    renameSync(draft, file);
  } finally {
    rmSync(draft, { force: true });
  }
}

/** The binary of the shipped version: the one the clone runs on, or fetched from npm. */
async function nodeBinary(): Promise<string> {
  const packageName = `node-linux-${arch}`;
  const places = [path.join(root, ".runtime"), path.join(root, ".cache", "package-node")];
  const found = () =>
    places
      .map((place) => path.join(place, "node_modules", packageName))
      .find((folder) => versionOf(path.join(folder, "package.json")) === shippedNode);
  if (found() === undefined) {
    const place = places[1] ?? "";
    mkdirSync(place, { recursive: true });
    writeFileSync(path.join(place, "package.json"), '{"private":true}\n');
    console.error(`package: fetching Node ${shippedNode} (npm package ${packageName})`);
    const flags = ["--no-audit", "--no-fund", "--ignore-scripts"];
    run("npm", ["install", "--prefix", place, ...flags, `${packageName}@${shippedNode}`]);
  }
  const folder = found();
  if (folder === undefined) throw new Error(`npm installed no ${packageName} ${shippedNode}`);
  return path.join(folder, "bin", "node");
}

function versionOf(manifest: string): string | undefined {
  if (!existsSync(manifest)) return undefined;
  return (JSON.parse(readFileSync(manifest, "utf8")) as { version: string }).version;
}

async function sha256(file: string): Promise<string> {
  const hash = createHash("sha256");
  for await (const chunk of createReadStream(file)) hash.update(chunk as Buffer);
  return hash.digest("hex");
}

function git(...args: string[]): string {
  return run("git", args).trim();
}

function run(program: string, args: string[]): string {
  const { status, stdout, stderr, error } = spawnSync(program, args, { cwd: root, encoding: "utf8" });
  if (status !== 0) throw new Error(`${program} ${args.join(" ")}: ${error?.message ?? stderr}`);
  return stdout;
}
