/**
 * `npm run bench [-- NAME…]`: measures what docs/performance.md has figures of, each figure beside its floor of the same run, prints
 * the table and writes it to bench/results/. `npm run bench -- --url URL [--key KEY]` measures any service of this interface, with the key of $ALCOVE_API_KEY unless one is given. A budget that is not met does not fail the run: the machine may be busy.
 */
import { mkdir, writeFile } from "node:fs/promises";
import { cpus, release } from "node:os";
import path from "node:path";
import { inspect } from "node:util";
import { argumentsOf, refuse } from "../scripts/arguments.ts";
import { buildWhatIsMeasured } from "./built.ts";
import { printTable, type Row } from "./row.ts";
import { alternatives } from "./scenarios/alternatives.ts";
import { anyService } from "./scenarios/any-service.ts";
import { commandLine } from "./scenarios/command-line.ts";
import { density } from "./scenarios/density.ts";
import { dockerRows } from "./scenarios/docker.ts";
import { nativeExec, prootExec } from "./scenarios/exec.ts";
import { fairness } from "./scenarios/fairness.ts";
import { execHops } from "./scenarios/hops.ts";
import { idleCost } from "./scenarios/idle.ts";
import { mockScale } from "./scenarios/mock-scale.ts";
import { networkRows } from "./scenarios/network.ts";
import { previews } from "./scenarios/previews.ts";
import { sharedUse } from "./scenarios/shared.ts";
import { smallPieces } from "./scenarios/small-pieces.ts";
import { controlPlane, nativeSpawn } from "./scenarios/spawn.ts";
import { spawnHops } from "./scenarios/spawn-hops.ts";
import { ndjsonStream, rawFiles } from "./scenarios/streams.ts";
import { projectRoot } from "./service.ts";

const own: Record<string, () => Promise<Row[]>> = {
  "native-exec": nativeExec,
  "native-hops": execHops,
  "native-spawn-hops": spawnHops,
  "native-spawn": nativeSpawn,
  "native-stream": ndjsonStream,
  "native-small-pieces": smallPieces,
  "native-files": rawFiles,
  "native-idle": idleCost,
  "native-network": networkRows,
  "native-fairness": fairness,
  "native-density": density,
  "command-line": commandLine,
  alternatives,
  previews,
  docker: dockerRows,
  proot: prootExec,
  mock: controlPlane,
  "mock-scale": mockScale,
  shared: sharedUse,
};

const usage = `npm run bench [-- NAME…]
npm run bench -- --url URL [--key KEY]

names: ${Object.keys(own).join(", ")}`;
const {
  values: { url, key },
  positionals: wanted,
} = argumentsOf("bench", usage, {
  allowPositionals: true,
  options: { url: { type: "string" }, key: { type: "string" } },
});
if (url !== undefined && !/^https?:$/.test(URL.parse(url)?.protocol ?? ""))
  refuse("bench", `--url ${url} is no http:// or https:// address`);
if (key !== undefined && url === undefined) refuse("bench", "--key is for a service that --url names");
if (url !== undefined && wanted.length > 0)
  refuse("bench", `with --url there are no scenarios to choose from: ${wanted.join(", ")}`);

const scenarios =
  url === undefined ? own : { [url]: () => anyService({ url, key: key ?? process.env.ALCOVE_API_KEY }) };
const unknown = wanted.filter((name) => scenarios[name] === undefined);
if (unknown.length > 0)
  refuse("bench", `no scenario ${unknown.join(", ")}; there are: ${Object.keys(scenarios).join(", ")}`);
if (url === undefined) await buildWhatIsMeasured("bench");
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
    // Of a service elsewhere its own words say it; where in this program they were met says nothing.
    const why = url !== undefined && error instanceof Error ? error.message : inspect(error);
    console.error(`bench: ${name} FAILED: ${why}`);
  }
}
if (rows.length === 0) process.exit(failed ? 1 : 0);
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
await writeFile(file, `${JSON.stringify({ takenAt, machine, url, rows }, null, 2)}\n`);
console.error(`bench: written to ${path.relative(projectRoot, file)}`);
process.exit(failed ? 1 : 0);
