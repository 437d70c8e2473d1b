/**
 * `npm run bench:guard`: measures what is called most on this state and on the commit that bench/baseline names, in turns, and fails when
 * something is more than 15 % slower in three runs, with the profile of the service that is. docs/performance.md.
 */
import { existsSync } from "node:fs";
import { mkdtemp, readdir, readFile, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import path from "node:path";
import { argumentsOf } from "../scripts/arguments.ts";
import { fullBuild, layOut } from "../scripts/earlier-release.mjs";
import { ensureBundle } from "../scripts/setup/bundles.mjs";
import { buildWhatIsMeasured } from "./built.ts";
import { type HotRow, hotRows, type Measured } from "./hot-rows.ts";
import { hottest } from "./profile.ts";
import { inRounds, median, medianRatio } from "./rounds.ts";
import { projectRoot, type Service, startService } from "./service.ts";

const mostSlower = 1.15;
const runs = 3;
const rounds = 7;

argumentsOf("bench:guard", "npm run bench:guard: no options; docs/performance.md", {});
await buildWhatIsMeasured("bench:guard");
const baseline = (await readFile(path.join(projectRoot, "bench", "baseline"), "utf8")).trim();
console.error(`bench guard: laying out ${baseline.slice(0, 12)} …`);
const laidOut = layOut(baseline, { below: "baseline", build: fullBuild });
if (laidOut.folder === undefined) {
  console.error(`bench guard: the baseline cannot be had: ${laidOut.missing}`);
  process.exit(1);
}
// What a user starts; a baseline may have had no such thing.
if (existsSync(path.join(laidOut.folder, "scripts", "bundle.mjs")))
  await ensureBundle(laidOut.folder, process.execPath, "service");
let suspects: readonly HotRow[] = hotRows;
for (let run = 1; run <= runs && suspects.length > 0; run++) {
  const slower: HotRow[] = [];
  for (const row of suspects) {
    const { ratio, ours, theirs } = await compare(row.settings, row.measure, laidOut.folder);
    const verdict = ratio > mostSlower ? "SLOWER" : "well";
    console.log(
      `${row.what}: ${ours.toFixed(3)} ${row.unit}, ${ratio.toFixed(2)} × the baseline's ${theirs.toFixed(3)}: ${verdict}`,
    );
    if (ratio > mostSlower) slower.push(row);
  }
  suspects = slower;
}
for (const { what, settings, measure } of suspects) {
  console.error(
    `bench guard: ${what} is more than 15 % slower than at ${baseline.slice(0, 12)} in ${runs} runs`,
  );
  for (const line of await profileOf(settings, measure)) console.error(`  ${line}`);
}
process.exit(suspects.length > 0 ? 1 : 0);

async function compare(
  settings: Record<string, string>,
  measure: (service: Service) => Promise<Measured>,
  root: string,
): Promise<{ ratio: number; ours: number; theirs: number }> {
  await using present = await startService(settings);
  await using former = await startService(settings, { root });
  await using now = await measure(present);
  await using before = await measure(former);
  const figures = await inRounds(rounds, { ours: () => now.round(), theirs: () => before.round() });
  return {
    ratio: medianRatio(figures.ours, figures.theirs),
    ours: median(figures.ours),
    theirs: median(figures.theirs),
  };
}

/** What the service's thread is at while the row is measured once more. */
async function profileOf(
  settings: Record<string, string>,
  measure: (service: Service) => Promise<Measured>,
): Promise<string[]> {
  const folder = await mkdtemp(path.join(tmpdir(), "alcove-bench-profile-"));
  try {
    {
      await using service = await startService(settings, {
        nodeFlags: ["--cpu-prof", `--cpu-prof-dir=${folder}`],
      });
      await using measured = await measure(service);
      for (let round = 0; round < rounds; round++) await measured.round();
    }
    const files = await readdir(folder);
    const profiles = await Promise.all(files.map((file) => readFile(path.join(folder, file), "utf8")));
    return profiles.flatMap((text) => hottest(text));
  } finally {
    await rm(folder, { recursive: true, force: true });
  }
}
