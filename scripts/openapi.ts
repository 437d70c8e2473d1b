import { writeFile } from "node:fs/promises";
import path from "node:path";
import { currentDocument } from "../packages/server/test/support/openapi-document.ts";

/** Writes `openapi.json` anew from the routes: `node scripts/with-node.mjs scripts/openapi.ts`. */
await writeFile(path.join(import.meta.dirname, "..", "openapi.json"), await currentDocument());
