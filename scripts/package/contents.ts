import { readdirSync, readFileSync, statSync } from "node:fs";
import path from "node:path";
import { type BundleKind, bundlesFolder, currentBundle } from "../../packages/cli/src/bundle.cjs";
import type { Entry } from "./archive.ts";

/** One package of the lock file that an installation runs on. */
export interface ProductionPackage {
  /** Where it lies, from the root: `node_modules/ajv`. */
  path: string;
  name: string;
  version: string;
  license: string;
}

interface LockEntry {
  version?: string;
  license?: string;
  link?: boolean;
  dev?: boolean;
  optional?: boolean;
  resolved?: string;
}

/** Folders of sources that only tests read. */
const onlyForTests: ReadonlySet<string> = new Set(["testing", "contract"]);
/** What an installation has of them are their files. */
export const bundleKinds = ["client", "service"] as const;
/** What makes the bundles, which an installation has made; what is optional belongs to it too. */
const onlyToBundle: ReadonlySet<string> = new Set([
  "rolldown",
  "@rolldown/pluginutils",
  "@oxc-project/types",
]);
/** What compilers, debuggers and a package's own tests read: a third of all files. */
const onlyForDevelopers = /\.d\.[cm]?ts$|\.map$|^(?:test|tests|examples|benchmarks?|\.github)\//;

/**
 * Everything that an installation consists of, besides what tells that it is one.
 * @param root of the clone, with its packages, Node, agent and bundle in place.
 * @throws Error when what is installed is not what the lock file says.
 */
export function contentsOf(root: string, options: { node: string; serviceNodeFlags: string[] }): Entry[] {
  const file = (from: string, to = from, mode = 0o644): Entry => ({
    path: to,
    type: "file",
    mode,
    source: path.join(root, from),
  });
  const launcher = readFileSync(path.join(root, "deploy/package/alcove"), "utf8");
  const entries: Entry[] = [
    {
      path: "bin/alcove",
      type: "file",
      mode: 0o755,
      content: Buffer.from(launcher.replace("@SERVICE_NODE_FLAGS@", options.serviceNodeFlags.join(" "))),
    },
    { path: "node/bin/node", type: "file", mode: 0o755, source: options.node },
    {
      path: "node/LICENSE",
      type: "file",
      mode: 0o644,
      source: path.join(path.dirname(options.node), "..", "LICENSE"),
    },
    file("agent/dist/alcove-agent", undefined, 0o755),
    file("agent/dist/alcove-launch", undefined, 0o755),
    // What the packages are made of is nothing to who installs one.
    ...folder(root, "deploy", (relative) => !/^(?:package|debian)\//.test(relative)),
    ...["LICENSE", "CHANGELOG.md", "package.json", "openapi.json"].map((name) => file(name)),
    ...folder(root, "docs", () => true),
  ];
  for (const name of readdirSync(path.join(root, "packages")).sort()) {
    const at = `packages/${name}`;
    entries.push(
      file(`${at}/package.json`),
      ...folder(
        root,
        `${at}/src`,
        (relative) =>
          !relative.endsWith(".test.ts") && !relative.split("/").some((part) => onlyForTests.has(part)),
      ),
      // As npm links workspaces: Node runs TypeScript only outside node_modules.
      { path: `node_modules/@alcove/${name}`, type: "symlink", target: `../../${at}` },
    );
  }
  for (const kind of bundleKinds) entries.push(...bundleEntries(root, kind));
  for (const found of productionPackages(root)) {
    const nested = (relative: string) => relative.split("/").includes("node_modules");
    const wanted = (relative: string) => !nested(relative) && !onlyForDevelopers.test(relative);
    entries.push(...folder(root, found.path, wanted));
  }
  return entries;
}

/** @throws Error when there is none of what lies in the clone. */
function bundleEntries(root: string, kind: BundleKind): Entry[] {
  const entry = currentBundle(root, kind);
  if (entry === undefined)
    throw new Error(`there is no bundle of the ${kind}: node scripts/bundle.mjs ${kind}`);
  const made = path.dirname(path.relative(root, entry));
  // Which of the two places it has in this clone is no part of the commit.
  const place = path.posix.join(bundlesFolder, `${kind}-1`);
  // Whatever the times of files in an installation are, the bundle is of its sources.
  const manifest = { entry: path.posix.join(path.basename(place), path.basename(entry)), files: [] };
  return [
    ...folder(root, made, () => true).map((each) => ({
      ...each,
      path: path.posix.join(place, path.posix.relative(made, each.path)),
    })),
    {
      path: `${bundlesFolder}/${kind}.json`,
      type: "file",
      mode: 0o644,
      content: Buffer.from(`${JSON.stringify(manifest)}\n`),
    },
  ];
}

/** The packages of the lock file that are not for development alone. @throws Error when another version is installed. */
export function productionPackages(root: string): ProductionPackage[] {
  const lock = JSON.parse(readFileSync(path.join(root, "package-lock.json"), "utf8")) as {
    packages: Record<string, LockEntry>;
  };
  const found: ProductionPackage[] = [];
  for (const [at, entry] of Object.entries(lock.packages)) {
    if (!at.includes("node_modules/") || entry.link || entry.dev || entry.optional) continue;
    const name = at.slice(at.lastIndexOf("node_modules/") + "node_modules/".length);
    if (onlyToBundle.has(name)) continue;
    const manifest = readFileSync(path.join(root, at, "package.json"), "utf8");
    const { version, license } = JSON.parse(manifest) as { version: string; license?: string };
    if (version !== entry.version)
      throw new Error(`${at} is ${version}, package-lock.json says ${entry.version}: run npm install`);
    found.push({ path: at, name, version, license: entry.license ?? license ?? "not stated" });
  }
  return found.sort((a, b) => (a.path < b.path ? -1 : 1));
}

function folder(root: string, at: string, wanted: (relative: string) => boolean): Entry[] {
  return readdirSync(path.join(root, at), { recursive: true, withFileTypes: true })
    .map((entry) => path.relative(path.join(root, at), path.join(entry.parentPath, entry.name)))
    .filter(wanted)
    .map((relative) => path.posix.join(at, relative))
    .map((name) => ({ name, stat: statSync(path.join(root, name)) }))
    .filter(({ stat }) => stat.isFile())
    .map(({ name, stat }): Entry => {
      const mode = (stat.mode & 0o100) === 0 ? 0o644 : 0o755;
      return { path: name, type: "file", mode, source: path.join(root, name) };
    });
}
