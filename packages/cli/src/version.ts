import { readFileSync } from "node:fs";
import { installedRelease } from "./release.ts";

/** Of the package.json this command belongs to, with the commit it was made from: `0.1.0 (591adf7c21d8)`. */
export function version(): string {
  const content: unknown = JSON.parse(
    readFileSync(new URL("../../../package.json", import.meta.url), "utf8"),
  );
  const number =
    typeof content === "object" && content !== null && "version" in content
      ? String(content.version)
      : "unknown";
  const commit = installedRelease()?.commit ?? commitOf(new URL("../../../.git", import.meta.url).pathname);
  return commit === undefined ? number : `${number} (${commit.slice(0, 12)})`;
}

/** Reads what git wrote: starting git for it would take longer than most commands. */
function commitOf(git: string): string | undefined {
  // In a further work tree `.git` is a file that names the directory.
  const directory = read(git)?.match(/^gitdir: (.+)$/m)?.[1] ?? git;
  const head = read(`${directory}/HEAD`)?.trim();
  const ref = head?.match(/^ref: (.+)$/)?.[1];
  if (ref === undefined) return head;
  const shared = read(`${directory}/commondir`)?.trim();
  const common =
    shared === undefined ? directory : shared.startsWith("/") ? shared : `${directory}/${shared}`;
  const packed = read(`${common}/packed-refs`)
    ?.split("\n")
    .find((line) => line.endsWith(` ${ref}`));
  return read(`${common}/${ref}`)?.trim() ?? packed?.split(" ", 1)[0];
}

function read(path: string): string | undefined {
  try {
    return readFileSync(path, "utf8");
  } catch {
    return undefined;
  }
}
