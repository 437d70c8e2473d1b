/** Writes docs/configuration.md from the schema of the configuration; a test fails when it is stale. */
import { writeFile } from "node:fs/promises";
import path from "node:path";
import { fileURLToPath } from "node:url";
import { configurationReference } from "../packages/server/src/config/reference.ts";

const file = path.resolve(path.dirname(fileURLToPath(import.meta.url)), "../docs/configuration.md");
await writeFile(file, configurationReference());
console.log(`wrote ${file}`);
