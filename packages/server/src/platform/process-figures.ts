import { PerformanceObserver, performance } from "node:perf_hooks";

/** What this process takes of the machine. Counts collections of garbage from when it is made until it is disposed. */
export class ProcessFigures implements Disposable {
  readonly #observer: PerformanceObserver;
  #gcCycles = 0;

  constructor() {
    this.#observer = new PerformanceObserver((list) => {
      this.#gcCycles += list.getEntries().length;
    });
    this.#observer.observe({ entryTypes: ["gc"] });
  }

  get gcCycles(): number {
    return this.#gcCycles;
  }

  /** Open handles and requests under way: connections, timers, children, file operations. */
  get underWay(): number {
    return process.getActiveResourcesInfo().length;
  }

  /** Processor time of all threads. */
  get cpuSeconds(): number {
    const { user, system } = process.cpuUsage();
    return (user + system) / 1e6;
  }

  /** How long the event loop has not waited for something to do. */
  get busySeconds(): number {
    return performance.eventLoopUtilization().active / 1_000;
  }

  /** Bytes. `all`: of the process as the system counts it; `used`: of the heap and beside it; `heapUsed`: of the heap. */
  get memory(): { all: number; used: number; heapUsed: number } {
    const { rss, heapUsed, external } = process.memoryUsage();
    return { all: rss, used: heapUsed + external, heapUsed };
  }

  [Symbol.dispose](): void {
    this.#observer.disconnect();
  }
}
