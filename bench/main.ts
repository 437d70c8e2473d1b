/**
 * `npm run bench [-- NAME…]`: measures what docs/performance.md has figures of, each figure beside its floor of the same run, prints
 * the table and writes it to bench/results/. `npm run bench -- --url URL [--key KEY]` measures any service of this interface. A budget that is not met does not fail the run: the machine may be busy.
 */
import { mkdir, writeFile } from "node:fs/promises";
import { cpus, release } from "node:os";
import path from "node:path";
import { parseArgs } from "node:util";
import { printTable, type Row } from "./row.ts";
import { anyService } from "./scenarios/any-service.ts";
import { commandLine } from "./scenarios/command-line.ts";
import { dockerRows } from "./scenarios/docker.ts";
import { nativeExec, prootExec } from "./scenarios/exec.ts";
import { idleCost } from "./scenarios/idle.ts";
import { networkRows } from "./scenarios/network.ts";
import { previews } from "./scenarios/previews.ts";
import { sharedUse } from "./scenarios/shared.ts";
import { smallPieces } from "./scenarios/small-pieces.ts";
import { controlPlane, nativeSpawn } from "./scenarios/spawn.ts";
import { ndjsonStream, rawFiles } from "./scenarios/streams.ts";
import { projectRoot } from "./service.ts";

const {
  values: { url, key },
  positionals: wanted,
} = parseArgs({ allowPositionals: true, options: { url: { type: "string" }, key: { type: "string" } } });

const own: Record<string, () => Promise<Row[]>> = {
  "native-exec": nativeExec,
  "native-spawn": nativeSpawn,
  "native-stream": ndjsonStream,
  "native-small-pieces": smallPieces,
  "native-files": rawFiles,
  "native-idle": idleCost,
  "native-network": networkRows,
  "command-line": commandLine,
  previews,
  docker: dockerRows,
  proot: prootExec,
  mock: controlPlane,
  shared: sharedUse,
};

const scenarios = url === undefined ? own : { [url]: () => anyService({ url, key }) };
const unknown = wanted.filter((name) => scenarios[name] === undefined);
if (unknown.length > 0) {
  console.error(`bench: no scenario ${unknown.join(", ")}; there are: ${Object.keys(scenarios).join(", ")}`);
  process.exit(2);
}
const rows: Row[] = [];
let failed = false;
for (const [name, scenario] of Object.entries(scenarios)) {
  if (wanted.length > 0 && !wanted.includes(name)) continue;
  console.error(`bench: ${name} …`);
  try {
    const measured = await scenario();
    if (measured.length === 0) console.error(`bench: ${name} SKIPPED: what it needs is not on this machine`);
    rows.push(...measured);
  } catch (error) {
    failed = true;
    console.error(`bench: ${name} FAILED:`, error);
  }
}
const table = printTable(rows);
console.log(table);
const results = path.join(projectRoot, "bench", "results");
await mkdir(results, { recursive: true });
const takenAt = new Date().toISOString();
const machine = {
  cores: cpus().length,
  model: cpus()[0]?.model ?? "",
  kernel: release(),
  node: process.version,
};
const file = path.join(results, `${takenAt.replaceAll(":", "-")}.json`);
await writeFile(file, `${JSON.stringify({ takenAt, machine, rows }, null, 2)}\n`);
console.error(`bench: written to ${path.relative(projectRoot, file)}`);
process.exit(failed ? 1 : 0);
