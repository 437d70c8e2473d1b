// Plain JavaScript: needed before types can be stripped from the cache. The bundle is made by scripts/bundle-command.mjs.
const { readFileSync, statSync } = require("node:fs");
const path = require("node:path");

/** Words that call commands with the service's own code in them, which stays in its sources. */
const fromSource = ["serve", "doctor", "backup", "restore", "purge", "config", "image"];

/** Where the bundle lies, below the root. */
const bundleFolder = "packages/cli/dist";
/** Beside it: what it was made of, as `[path below the root, size in bytes, mtime in ms]`; of an installed package nothing. */
const sourcesFile = "sources.json";

/**
 * @param root of the clone or of the installation.
 * @returns the bundle's entry; undefined when there is none, or what it was made of has changed since.
 */
function currentBundle(root) {
  const folder = path.join(root, bundleFolder);
  try {
    const sources = JSON.parse(readFileSync(path.join(folder, sourcesFile), "utf8"));
    const unchanged = sources.every(([file, size, mtimeMs]) => {
      const found = statSync(path.join(root, file));
      return found.size === size && found.mtimeMs === mtimeMs;
    });
    return unchanged ? path.join(folder, "main.cjs") : undefined;
  } catch {
    return undefined;
  }
}

module.exports = { bundleFolder, currentBundle, fromSource, sourcesFile };
