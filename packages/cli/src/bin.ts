import { enableCompileCache } from "node:module";

// Before anything else is loaded: what is compiled once need not be compiled at the next start.
enableCompileCache();
const { main } = await import("./main.ts");
await main();
