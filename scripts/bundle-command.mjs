// Makes one bundle of the client commands, so that they load a few files instead of a hundred: docs/decisions/command-and-start.md.
// Plain JavaScript, for the Node that the service runs on. A process of its own: the bundler's threads end with it.
import { mkdirSync, renameSync, rmSync, statSync, writeFileSync } from "node:fs";
import path from "node:path";
import { fileURLToPath } from "node:url";
import { rolldown } from "rolldown";
import { bundleFolder, fromSource, sourcesFile } from "../packages/cli/src/bundle.cjs";

const root = path.resolve(path.dirname(fileURLToPath(import.meta.url)), "..");
const place = path.join(root, bundleFolder);
const draft = `${place}.${process.pid}.new`;
const began = Date.now();
const withoutPrograms = "\0without-programs";

try {
  const bundle = await rolldown({
    input: path.join(root, "packages/cli/src/main.ts"),
    cwd: root,
    platform: "node",
    external: (id, importer) => id.startsWith("node:") && !isStarter(id, importer),
    plugins: [{ name: "alcove", resolveId, load }],
    onLog(level, log) {
      if (level === "warn") throw new Error(log.message);
    },
  });
  // The names stay from one release to the next: a command that runs may load one after its files were replaced.
  const names = { entryFileNames: "[name].cjs", chunkFileNames: "[name].cjs" };
  const { output } = await bundle.write({ dir: draft, format: "cjs", minify: { mangle: false }, ...names });
  writeFileSync(path.join(draft, sourcesFile), `${JSON.stringify(sourcesOf(output))}\n`);
  publish();
} finally {
  rmSync(draft, { recursive: true, force: true });
}

/** @throws Error when a client command has come to load the service. */
function resolveId(id, importer) {
  if (isStarter(id, importer)) return withoutPrograms;
  if (id.startsWith("@alcove/server"))
    throw new Error(`${importer} loads ${id}: name its command in fromSource (packages/cli/src/bundle.cjs)`);
  const command = /^\.\/commands\/(.+)\.ts$/.exec(id)?.[1];
  if (command === undefined || !fromSource.includes(command === "config-lint" ? "config" : command))
    return null;
  return { id: path.posix.join("../src", id), external: true };
}

/** Commander starts programs for commands of a kind that we have none of; loading that takes longer than to parse our own. */
function isStarter(id, importer) {
  return id === "node:child_process" && importer?.includes("/commander/") === true;
}

function load(id) {
  return id === withoutPrograms ? "export default {};" : null;
}

/** @throws Error when one of them was changed meanwhile. */
function sourcesOf(output) {
  const modules = output.flatMap((chunk) => chunk.moduleIds ?? []).filter((id) => path.isAbsolute(id));
  const ours = modules.map((id) => path.relative(root, id)).filter((file) => !file.includes("node_modules"));
  return [...new Set([...ours, "package-lock.json"])].sort().map((file) => {
    const { size, mtimeMs } = statSync(path.join(root, file));
    if (mtimeMs >= began) throw new Error(`${file} was changed while the bundle was made of it`);
    return [file, size, mtimeMs];
  });
}

/** Whole or not at all. Somebody else may do the same: the first is as good as ours. */
function publish() {
  const old = `${place}.${process.pid}.old`;
  mkdirSync(path.dirname(place), { recursive: true });
  try {
    renameSync(place, old);
  } catch (error) {
    if (error.code !== "ENOENT") throw error;
  }
  try {
    renameSync(draft, place);
  } catch (error) {
    if (error.code !== "ENOTEMPTY" && error.code !== "EEXIST") throw error;
  }
  rmSync(old, { recursive: true, force: true });
}
