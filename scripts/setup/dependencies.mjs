// Installs the npm packages of the clone when they are missing or the lock file has changed. Plain JavaScript, Node 18
// and up.
import { createHash } from "node:crypto";
import { existsSync, readFileSync, renameSync, statSync, writeFileSync } from "node:fs";
import path from "node:path";
import { runStep } from "./step.mjs";

const quiet = ["--no-audit", "--no-fund", "--ignore-scripts", "--loglevel=error"];

/** @returns whether what is installed fits the lock file, with the tools for development when `dev`. Cheap. */
export function dependenciesCurrent(root, { dev }) {
  const installed = installedState(root);
  return installed.current && (installed.dev || !dev);
}

/** @returns whether the packages are there. */
export async function ensureDependencies(root, { dev }) {
  const installed = installedState(root);
  const wantDev = dev || installed.dev;
  if (installed.current && (installed.dev || !dev)) {
    writeStamp(root, installed.dev);
    return true;
  }
  const omit = wantDev ? [] : ["--omit=dev"];
  // Not `npm ci`: it begins with an empty node_modules, which a running service would not survive, and it refuses a
  // lock file that lacks packages for other platforms. `install` takes the locked versions too and saves nothing.
  const title = installed.current ? "adding the packages for development" : "installing npm packages";
  const args = ["install", "--no-save", ...omit, ...quiet];
  const ok = await runStep(title, "npm", args, { cwd: root });
  if (ok) writeStamp(root, wantDev);
  return ok;
}

function installedState(root) {
  const modules = path.join(root, "node_modules");
  const npmsOwn = path.join(modules, ".package-lock.json");
  if (!existsSync(npmsOwn)) return { current: false, dev: false };
  const hasDev = existsSync(path.join(modules, "vitest", "package.json"));
  try {
    const stamp = JSON.parse(readFileSync(stampPath(root), "utf8"));
    return { current: stamp.lock === lockHash(root), dev: stamp.dev === true && hasDev };
  } catch {
    // Installed by hand: npm writes its own lock last, so a newer one means that everything is there.
    const lock = path.join(root, "package-lock.json");
    return { current: statSync(npmsOwn).mtimeMs >= statSync(lock).mtimeMs, dev: hasDev };
  }
}

function writeStamp(root, dev) {
  const content = JSON.stringify({ lock: lockHash(root), dev });
  const file = stampPath(root);
  if (existsSync(file) && readFileSync(file, "utf8") === content) return;
  // Whole or not at all, and a file of its own where a copy of the tree shares its files.
  const next = `${file}.${process.pid}`;
  writeFileSync(next, content);
  renameSync(next, file);
}

function stampPath(root) {
  return path.join(root, "node_modules", ".alcove-stamp");
}

function lockHash(root) {
  return createHash("sha256")
    .update(readFileSync(path.join(root, "package-lock.json")))
    .digest("hex");
}
