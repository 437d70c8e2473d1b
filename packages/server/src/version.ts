import { readFileSync } from "node:fs";

/** The project's version, from the package.json at its root: the one place it is written in. */
export const version: string = (
  JSON.parse(readFileSync(new URL("../../../package.json", import.meta.url), "utf8")) as { version: string }
).version;
