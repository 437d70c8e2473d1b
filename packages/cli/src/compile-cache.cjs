// Plain JavaScript: needed before types can be stripped from the cache.
const { lstatSync, mkdirSync, realpathSync } = require("node:fs");
const path = require("node:path");

/**
 * Where compiled code is kept between starts: what lies there is run. Never Node's own place in the directory for temporary
 * files, which another user of the machine can make before we do.
 * @returns undefined where nobody but us and root can be trusted to have written it; each start compiles then.
 */
function compileCacheFolder(env = process.env) {
  const { base, below } = place(env);
  if (base === undefined || !path.isAbsolute(base)) return undefined;
  try {
    // No home that is not there is made: maintainer scripts have such.
    const real = realpathSync(base);
    // Nor does root, who may have a user's HOME, make anything there: the user could use it no more.
    if (![real, ...parents(real)].every(cannotBeReplaced)) return undefined;
    const wanted = path.join(real, ...below);
    mkdirSync(wanted, { recursive: true, mode: 0o700 });
    const folder = realpathSync(wanted);
    return keptFromOthers(folder) ? folder : undefined;
  } catch {
    return undefined;
  }
}

/** The first of what systemd, the desktop's rules and the user's home say. */
function place({ CACHE_DIRECTORY, XDG_CACHE_HOME, HOME }) {
  if (CACHE_DIRECTORY) return { base: CACHE_DIRECTORY.split(":", 1)[0], below: ["compiled"] };
  if (XDG_CACHE_HOME) return { base: XDG_CACHE_HOME, below: ["alcove", "compiled"] };
  return { base: HOME || undefined, below: [".cache", "alcove", "compiled"] };
}

/** The folder is ours alone, and nobody else can put another in its place. */
function keptFromOthers(folder) {
  const { uid, mode } = lstatSync(folder);
  return uid === process.geteuid() && (mode & 0o022) === 0 && parents(folder).every(cannotBeReplaced);
}

function parents(folder) {
  const parent = path.dirname(folder);
  return parent === folder ? [] : [parent, ...parents(parent)];
}

function cannotBeReplaced(folder) {
  const found = lstatSync(folder);
  const ours = found.uid === process.geteuid();
  if (!found.isDirectory() || !(ours || found.uid === 0)) return false;
  const sticky = (found.mode & 0o1000) !== 0;
  // A group that may write into a user's own folders is that user's choice, and often has no other member.
  return sticky || (found.mode & (ours ? 0o002 : 0o022)) === 0;
}

module.exports = { compileCacheFolder };
