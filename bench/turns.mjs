/**
 * Preloaded into a service (`--import`): on SIGUSR2 the longest turn of its event loop since the last one is appended to the file that
 * BENCH_TURNS names, as processor time of its thread, which what else runs on the machine does not add to, and by the clock.
 */
import { appendFileSync } from "node:fs";

const tickMs = 5;
const usedMs = () => {
  const { user, system } = process.threadCpuUsage();
  return (user + system) / 1_000;
};
let last = { used: usedMs(), at: performance.now() };
let longest = { used: 0, at: 0 };
// One that is due fires in the next turn: between two lies at most one turn that is longer than a tick.
setInterval(() => {
  const now = { used: usedMs(), at: performance.now() };
  longest = {
    used: Math.max(longest.used, now.used - last.used),
    at: Math.max(longest.at, now.at - last.at - tickMs),
  };
  last = now;
}, tickMs).unref();
process.on("SIGUSR2", () => {
  appendFileSync(process.env.BENCH_TURNS ?? "", `${JSON.stringify(longest)}\n`);
  longest = { used: 0, at: 0 };
});
