import { readFileSync } from "node:fs";

/** What `npm run package` made this installation from; a clone has no such file. */
export interface Release {
  /** Of the sources, whole. */
  commit: string;
}

/** Where the configuration of an installed service lies. */
export const systemConfigFile = "/etc/alcove/alcove.yaml";

/** @returns undefined in a clone. */
export function installedRelease(): Release | undefined {
  let text: string;
  try {
    text = readFileSync(new URL("../../../release.json", import.meta.url), "utf8");
  } catch {
    return undefined;
  }
  return JSON.parse(text) as Release;
}

/** How the command is called here. */
export function commandName(): string {
  return installedRelease() === undefined ? "bin/alcove" : "alcove";
}
