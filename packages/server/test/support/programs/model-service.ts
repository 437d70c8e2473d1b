import { loadConfig } from "../../../src/config/load.ts";
import { serve } from "../../../src/main.ts";
import { silentLogger } from "../../../src/platform/logger.ts";

/**
 * The service as a process of its own, to be killed. It tells where it listens, and when asked the most processor time
 * that one turn of its event loop has taken since it was ready: time that others took from it does not count.
 */
const service = await serve({
  config: loadConfig({ env: process.env, cwd: process.cwd() }),
  logger: silentLogger,
});
await service.ready;

const tickMs = 20;
const usedMs = () => {
  const { user, system } = process.threadCpuUsage();
  return (user + system) / 1_000;
};
let lastMs = usedMs();
let longestTurnMs = 0;
// A timer that is due fires in the next turn: between two ticks lies at most one turn that is longer than a tick.
setInterval(() => {
  const nowMs = usedMs();
  longestTurnMs = Math.max(longestTurnMs, nowMs - lastMs - tickMs);
  lastMs = nowMs;
}, tickMs).unref();

process.on("message", () => process.send?.({ longestTurnMs }));
process.on("SIGTERM", () => {
  void service.close().then(() => process.exit(0));
});
process.send?.({ url: service.url });
