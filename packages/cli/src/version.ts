import { readFileSync } from "node:fs";

/** Of the package.json this command belongs to. */
export function version(): string {
  const content: unknown = JSON.parse(readFileSync(new URL("../package.json", import.meta.url), "utf8"));
  return typeof content === "object" && content !== null && "version" in content
    ? String(content.version)
    : "unknown";
}
