// `bundle.mjs client|service`: makes one bundle of the client commands, or of all commands with the service, so that they load a few
// files instead of sixty and of two thousand: docs/decisions/command-and-start.md.
// Plain JavaScript, for the Node that the service runs on. A process of its own: the bundler's threads end with it.
import { existsSync, readdirSync, readFileSync, renameSync, rmSync, statSync, writeFileSync } from "node:fs";
import path from "node:path";
import { fileURLToPath } from "node:url";
import { rolldown } from "rolldown";
import { bundlesFolder, withService } from "../packages/cli/src/bundle.cjs";
import { removeLeftDrafts } from "./setup/left-drafts.mjs";

const root = path.resolve(path.dirname(fileURLToPath(import.meta.url)), "..");
const [kind] = process.argv.slice(2);
const withoutPrograms = "\0without-programs";
/** What makes a bundle, besides its sources: how, and which packages lie there, whatever the lock file has come to say. */
const recipe = ["scripts/bundle.mjs", "packages/cli/src/bundle.cjs", "tsconfig.json", "package-lock.json"];
const installed = "node_modules/.package-lock.json";

// The client's is loaded at once by each command: nothing in it is for readers. Lines and names of the service's are what is in its log.
const kinds = {
  client: {
    extension: "cjs",
    output: { format: "cjs", minify: { mangle: false } },
    external: (id, importer) => id.startsWith("node:") && !isStarter(id, importer),
    plugin: {
      resolveId: clientModule,
      load: (id) => (id === withoutPrograms ? "export default {};" : null),
      transform: knowingItsPlace,
    },
  },
  service: {
    extension: "mjs",
    output: { format: "esm", keepNames: true },
    external: (id) => id.startsWith("node:"),
    plugin: { transform: knowingItsPlace },
  },
};
if (!Object.hasOwn(kinds, kind)) throw new Error(`expected client or service, got ${kind}`);
const { extension, output, external, plugin } = kinds[kind];

const folder = path.join(root, bundlesFolder);
const place = unusedPlace();
const draft = path.join(folder, `${place}.${process.pid}.new`);
const began = Date.now();

removeLeftDrafts(folder);
try {
  const bundle = await rolldown({
    input: path.join(root, "packages/cli/src/main.ts"),
    cwd: root,
    platform: "node",
    external,
    plugins: [{ name: "alcove", ...plugin }],
    onLog(level, log) {
      if (level === "warn") throw new Error(log.message);
    },
  });
  // Names that stay keep what was compiled of them in one place of the compile cache.
  const names = { entryFileNames: `[name].${extension}`, chunkFileNames: `[name].${extension}` };
  const made = await bundle.write({ dir: draft, ...output, ...names });
  publish({ entry: `${place}/main.${extension}`, files: [...sourcesOf(made.output), ...written()] });
} finally {
  rmSync(draft, { recursive: true, force: true });
}

/** @throws Error when a client command has come to load the service. */
function clientModule(id, importer) {
  if (isStarter(id, importer)) return withoutPrograms;
  if (id.startsWith("@alcove/server"))
    throw new Error(`${importer} loads ${id}: name its command in withService (packages/cli/src/bundle.cjs)`);
  const command = /^\.\/commands\/(.+)\.ts$/.exec(id)?.[1];
  if (command === undefined || !withService.includes(command === "config-lint" ? "config" : command))
    return null;
  return { id: path.posix.join("../../src", id), external: true };
}

/** Commander starts programs for commands of a kind that we have none of; loading that takes longer than to parse our own. */
function isStarter(id, importer) {
  return id === "node:child_process" && importer?.includes("/commander/") === true;
}

/** Each source finds what lies beside it, wherever its code has come to lie. @throws Error when it asks in another way than by `import.meta.url`. */
function knowingItsPlace(code, id) {
  if (!path.isAbsolute(id) || id.includes("node_modules")) return null;
  const [other] = /import\.meta\.(?:dir|file)name/.exec(code) ?? [];
  if (other !== undefined)
    throw new Error(`${id} uses ${other}: in a bundle import.meta.url alone is that of the source`);
  if (!code.includes("import.meta.url")) return null;
  const source = path.relative(path.join(folder, place), id);
  return code.replaceAll("import.meta.url", `new URL(${JSON.stringify(source)}, import.meta.url).href`);
}

/** @throws Error when one of them was changed meanwhile. */
function sourcesOf(chunks) {
  const modules = chunks.flatMap((chunk) => chunk.moduleIds ?? []).filter((id) => path.isAbsolute(id));
  const ours = modules.map((id) => path.relative(root, id)).filter((file) => !file.includes("node_modules"));
  // Which file an import between packages is, is in their manifests.
  const manifests = ours.map((file) => path.join(...file.split(path.sep).slice(0, 2), "package.json"));
  const also = existsSync(path.join(root, installed)) ? [installed] : [];
  return [...new Set([...ours, ...manifests, ...recipe, ...also])].sort().map((file) => {
    const { size, mtimeMs } = statSync(path.join(root, file));
    // One that was made on a machine whose clock is ahead is not being changed.
    if (mtimeMs >= began && mtimeMs <= Date.now())
      throw new Error(`${file} was changed while the bundle was made of it`);
    return [file, size, mtimeMs];
  });
}

/** After a loss of power files of the bundle may be empty whose names are there, and no start would make them anew. */
function written() {
  return readdirSync(draft).map((name) => {
    const { size, mtimeMs } = statSync(path.join(draft, name));
    return [path.posix.join(bundlesFolder, place, name), size, mtimeMs];
  });
}

/** One of two, so that what runs from the one before finds what it loads later. */
function unusedPlace() {
  const places = ["1", "2"].map((number) => `${kind}-${number}`);
  try {
    const { entry } = JSON.parse(readFileSync(path.join(folder, `${kind}.json`), "utf8"));
    return places.find((each) => each !== path.dirname(entry));
  } catch {
    return places[0];
  }
}

/** Whole or not at all. */
function publish(manifest) {
  const target = path.join(folder, place);
  if (existsSync(target)) {
    const old = path.join(folder, `${place}.${process.pid}.old`);
    renameSync(target, old);
    rmSync(old, { recursive: true, force: true });
  }
  renameSync(draft, target);
  const written = path.join(folder, `${kind}.json.${process.pid}.new`);
  writeFileSync(written, `${JSON.stringify(manifest)}\n`);
  renameSync(written, path.join(folder, `${kind}.json`));
}
