// Plain JavaScript, so that the one module loaded before the compile cache is on needs no type stripping.
import { enableCompileCache } from "node:module";

enableCompileCache();
const { main } = await import("./main.ts");
await main();
