import { openImageStore } from "../../images.ts";
import { silentLogger } from "../../platform/logger.ts";

/** A process of its own that imports: `import-child.ts DATA_DIR SOURCE NAME [stop]`; `stop` waits in the middle to be killed. */
const [dataDir = "", source = "", name = "", stop] = process.argv.slice(2);
const store = await openImageStore({ dataDir, aliases: {}, pullPolicy: "never", logger: silentLogger });
await store.importFrom(source, name, {
  signal: AbortSignal.timeout(60_000),
  onProgress: ({ step }) => {
    if (stop === undefined || step !== "store") return;
    process.send?.("in the middle");
    Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 60_000);
  },
});
process.disconnect?.();
