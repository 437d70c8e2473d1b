import { Histogram } from "../../platform/metrics/histogram.ts";

const waitBoundsMs = [10, 50, 100, 500, 1_000, 5_000, 10_000, 30_000, 60_000, 300_000];

/** What has become of spawns that had to wait, since the start of this process. */
export class QueueStats {
  queuedTotal = 0;
  dequeuedTotal = 0;
  timeouts = 0;
  waitMaxMs = 0;
  /** Of every wait that has ended, however it did. */
  readonly waits = new Histogram(waitBoundsMs);

  get waitCount(): number {
    return this.waits.count;
  }

  get waitTotalMs(): number {
    return this.waits.sum;
  }

  waited(ms: number): void {
    this.waits.observe(ms);
    this.waitMaxMs = Math.max(this.waitMaxMs, ms);
  }
}
