// Plain JavaScript, so that it needs no type stripping, and CommonJS, which Node loads in half the time: what is needed before the
// command is known.
const { enableCompileCache } = require("node:module");
const path = require("node:path");
const { currentBundle, fromSource } = require("./bundle.cjs");
const { compileCacheFolder } = require("./compile-cache.cjs");

const word = process.argv[2];
// A service is not ended by the signal that reloads it: before there is a configuration there is none to read again.
if (word === "serve") process.on("SIGHUP", () => undefined);
const bundle = fromSource.includes(word) ? undefined : currentBundle(path.resolve(__dirname, "../../.."));
if (bundle !== undefined) {
  require(bundle).main();
} else {
  // Of a bundle so little is compiled that to read it from a cache would take longer.
  const compiled = process.env.NODE_COMPILE_CACHE || compileCacheFolder();
  if (compiled !== undefined) enableCompileCache(compiled);
  import("./main.ts").then(({ main }) => main());
}
