// Plain JavaScript, so that the modules loaded before the compile cache is on need no type stripping.
import { enableCompileCache } from "node:module";
import { compileCacheFolder } from "./compile-cache.mjs";

// A service is not ended by the signal that reloads it: before there is a configuration there is none to read again.
if (process.argv[2] === "serve") process.on("SIGHUP", () => undefined);
const compiled = process.env.NODE_COMPILE_CACHE || compileCacheFolder();
if (compiled !== undefined) enableCompileCache(compiled);
const { main } = await import("./main.ts");
await main();
