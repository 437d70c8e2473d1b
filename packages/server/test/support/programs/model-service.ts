import { loadConfig } from "../../../src/config/load.ts";
import { serve } from "../../../src/main.ts";
import { silentLogger } from "../../../src/platform/logger.ts";
import { systemClock } from "../../../src/platform/system-clock.ts";
import { MockProvider } from "../../../src/providers/mock/index.ts";
import { RuntimeWatch } from "../runtime-watch.ts";
import { TurnWatch } from "../turn-watch.ts";

/**
 * The service as a process of its own, to be killed. It tells where it listens, and when asked the longest turn of its
 * event loop since it was ready, and how many runtimes an owner had on mock at most. Its clock is set by `jumpMs`, as that of a machine is: timers do not move with it.
 */
let aheadMs = 0;
const machineClock = systemClock.now;
systemClock.now = () => new Date(machineClock().getTime() + aheadMs);
const runtimes = new RuntimeWatch(MockProvider.prototype);
const service = await serve({
  config: loadConfig({ env: process.env, cwd: process.cwd() }),
  logger: silentLogger,
});
await service.ready;

const turns = new TurnWatch();

process.on("message", (asked: { jumpMs?: number }) => {
  if (asked.jumpMs !== undefined) aheadMs += asked.jumpMs;
  process.send?.({ longestTurnMs: turns.longestMs, mostOfOwner: runtimes.mostOfOwner });
});
process.on("SIGTERM", () => {
  void service.close().then(() => process.exit(0));
});
process.send?.({ url: service.url });
