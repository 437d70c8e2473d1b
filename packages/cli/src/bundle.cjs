// Plain JavaScript: needed before types can be stripped from the cache. The bundles are made by scripts/bundle.mjs.
const { readFileSync, statSync } = require("node:fs");
const path = require("node:path");

/** Words that call commands with the service's own code in them. */
const withService = ["serve", "doctor", "backup", "restore", "purge", "config", "image"];

/** Where bundles lie, below the root: `client.json` tells of the client commands' bundle, `service.json` of the other's. */
const bundlesFolder = "packages/cli/dist";

/**
 * What starts faster, in less memory, than the sources would.
 * @param root of the clone or of the installation.
 * @param kind `client` or `service`.
 * @returns the bundle's entry; undefined when there is none, or what it was made of or consists of has changed since.
 */
function currentBundle(root, kind) {
  const folder = path.join(root, bundlesFolder);
  try {
    // `files`: `[path below the root, size in bytes, mtime in ms]`; of an installed package none.
    const { entry, files } = JSON.parse(readFileSync(path.join(folder, `${kind}.json`), "utf8"));
    const unchanged = files.every(([file, size, mtimeMs]) => {
      const found = statSync(path.join(root, file));
      return found.size === size && found.mtimeMs === mtimeMs;
    });
    return unchanged ? path.join(folder, entry) : undefined;
  } catch {
    return undefined;
  }
}

module.exports = { bundlesFolder, currentBundle, withService };
