// Plain JavaScript, so that it needs no type stripping, and CommonJS, which Node loads in half the time: what is needed before the
// command is known.
const { enableCompileCache } = require("node:module");
const path = require("node:path");
const { currentBundle, withService } = require("./bundle.cjs");

const word = process.argv[2];
// A service is not ended by the signal that reloads it: before there is a configuration there is none to read again.
if (word === "serve") process.on("SIGHUP", () => undefined);
const kind = withService.includes(word) ? "service" : "client";
const bundle = currentBundle(path.resolve(__dirname, "../../.."), kind);
if (bundle !== undefined && kind === "client") {
  // Of so little code so little is compiled that to read it from a cache would take longer.
  require(bundle).main();
} else {
  const { compileCacheFolder } = require("./compile-cache.cjs");
  const compiled = process.env.NODE_COMPILE_CACHE || compileCacheFolder();
  if (compiled !== undefined) enableCompileCache(compiled);
  import(bundle === undefined ? "./main.ts" : require("node:url").pathToFileURL(bundle).href).then(
    ({ main }) => main(),
  );
}
