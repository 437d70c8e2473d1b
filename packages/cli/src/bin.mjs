// Plain JavaScript, so that the one module loaded before the compile cache is on needs no type stripping.
import { enableCompileCache } from "node:module";

// A service is not ended by the signal that reloads it: before there is a configuration there is none to read again.
if (process.argv[2] === "serve") process.on("SIGHUP", () => undefined);
enableCompileCache();
const { main } = await import("./main.ts");
await main();
