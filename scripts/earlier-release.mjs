// Lays an earlier commit out in .cache, with its agent built: for the test of upgrades, since sandboxes outlive the service that
// started them, and for the guard against regressions. Plain JavaScript for any Node from 18 up; does nothing when it is there.
import { spawnSync } from "node:child_process";
import {
  cpSync,
  existsSync,
  mkdirSync,
  readdirSync,
  renameSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from "node:fs";
import path from "node:path";
import { pathToFileURL } from "node:url";
import { agentBinaries, CargoMissing, findCargo } from "./build-agent.mjs";
import { projectRoot } from "./node-runtime.mjs";

/** The oldest release whose sandboxes this one serves. */
export const earliestRelease = "591adf7504de0dced0ac83e9ae56a473059f9ad8";

/** For the test of upgrades; how fast it is does not matter there. @returns as `layOut`. */
export function earlierRelease() {
  return layOut(earliestRelease, { below: "earlier-release", build: quickBuild });
}

/**
 * @param options below: folder in .cache; build: makes agent/dist of what is laid out, and says what went wrong.
 * @returns where it is, or why it cannot be had.
 */
export function layOut(commit, { below, build }) {
  const folder = path.join(projectRoot, ".cache", below, commit.slice(0, 12));
  const complete = path.join(folder, ".complete");
  if (existsSync(complete)) return { folder };
  if (run("git", ["cat-file", "-e", `${commit}^{commit}`], projectRoot).error !== undefined)
    return {
      missing: `the history at hand does not hold commit ${commit.slice(0, 12)}; is the clone shallow?`,
    };
  const draft = `${folder}.${process.pid}`;
  removeAbandoned(folder);
  mkdirSync(draft, { recursive: true });
  try {
    for (const [program, args, cwd] of [
      ["git", ["archive", "--output", path.join(draft, "tree.tar"), commit], projectRoot],
      ["tar", ["-xf", "tree.tar"], draft],
    ]) {
      const { error } = run(program, args, cwd);
      if (error !== undefined) return { missing: `${program} ${args[0]} failed: ${error}` };
    }
    const { error } = build(draft);
    if (error !== undefined) return { missing: error };
    linkPackages(draft);
    rmSync(path.join(draft, "tree.tar"), { force: true });
    writeFileSync(path.join(draft, path.basename(complete)), "");
    rmSync(folder, { recursive: true, force: true });
    renameSync(draft, folder);
    return { folder };
  } finally {
    rmSync(draft, { recursive: true, force: true });
  }
}

/** Drafts of those who were interrupted, a build of hundreds of megabytes each. */
function removeAbandoned(folder) {
  const above = path.dirname(folder);
  for (const name of existsSync(above) ? readdirSync(above) : []) {
    const pid = /^[0-9a-f]+\.(\d+)$/.exec(name)?.[1];
    if (pid !== undefined && (Number(pid) === process.pid || !existsSync(`/proc/${pid}`)))
      rmSync(path.join(above, name), { recursive: true, force: true });
  }
}

/** Unoptimized, in a fifth of the time. */
function quickBuild(draft) {
  let cargo;
  try {
    cargo = findCargo();
  } catch (error) {
    if (error instanceof CargoMissing) return { error: error.message };
    throw error;
  }
  const target = path.join(draft, "target");
  const crates = agentBinaries.flatMap((name) => ["-p", name]);
  const env = {
    ...process.env,
    CARGO_TARGET_DIR: target,
    CARGO_PROFILE_RELEASE_LTO: "off",
    CARGO_PROFILE_RELEASE_CODEGEN_UNITS: "16",
    CARGO_PROFILE_RELEASE_OPT_LEVEL: "0",
  };
  if (cargo.folder !== undefined) env.PATH = `${cargo.folder}${path.delimiter}${env.PATH ?? ""}`;
  delete env.RUSTFLAGS;
  delete env.CARGO_ENCODED_RUSTFLAGS;
  const args = ["build", "--release", "--locked", ...crates];
  const { error } = run(cargo.cargo, args, path.join(draft, "agent"), env);
  if (error !== undefined) return { error: `${path.basename(cargo.cargo)} build failed: ${error}` };
  collectBinaries(target, path.join(draft, "agent", "dist"));
  rmSync(target, { recursive: true, force: true });
  return {};
}

/** As its own set-up builds it. What a commit of the same sources has built serves as well. */
export function fullBuild(draft) {
  const built = path.join(projectRoot, "agent", "dist");
  if (existsSync(built)) cpSync(built, path.join(draft, "agent", "dist"), { recursive: true });
  const { error } = run(process.execPath, [path.join(draft, "scripts", "build-agent.mjs")], draft);
  rmSync(path.join(draft, "agent", "target"), { recursive: true, force: true });
  return error === undefined ? {} : { error: `its agent was not built: ${error}` };
}

function collectBinaries(target, dist) {
  mkdirSync(dist, { recursive: true });
  const places = [target, ...readdirSync(target).map((name) => path.join(target, name))];
  for (const name of agentBinaries) {
    const built = places.map((place) => path.join(place, "release", name)).find((file) => existsSync(file));
    if (built === undefined) throw new Error(`cargo built ${name} at no place that is known`);
    cpSync(built, path.join(dist, name));
  }
}

/** Its own workspaces, and beside them the packages that are installed for this release. */
function linkPackages(root) {
  const installed = path.join(projectRoot, "node_modules");
  const links = path.join(root, "node_modules");
  mkdirSync(path.join(links, "@alcove"), { recursive: true });
  for (const name of readdirSync(installed))
    if (name !== "@alcove" && !name.startsWith("."))
      symlinkSync(path.join(installed, name), path.join(links, name));
  for (const name of readdirSync(path.join(root, "packages")))
    symlinkSync(path.join("..", "..", "packages", name), path.join(links, "@alcove", name));
}

function run(program, args, cwd, env = process.env) {
  const result = spawnSync(program, args, { cwd, env, encoding: "utf8", timeout: 600_000 });
  if (result.status === 0) return {};
  const said = result.stderr?.trim().split("\n").at(-1);
  return { error: result.error?.message ?? (said || `exit code ${result.status}`) };
}

if (process.argv[1] !== undefined && import.meta.url === pathToFileURL(process.argv[1]).href) {
  const found = earlierRelease();
  console.log(found.folder ?? found.missing);
  process.exitCode = found.folder === undefined ? 1 : 0;
}
