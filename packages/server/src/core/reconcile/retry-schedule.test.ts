import { describe, expect, it } from "vitest";
import type { Clock } from "../../ports/clock.ts";
import { RetrySchedule } from "./retry-schedule.ts";

/** Fires each timer by hand, a little before its time as the machine's own timers may. */
function earlyClock() {
  let nowMs = 0;
  const armed: { atMs: number; callback: () => void }[] = [];
  const clock: Clock = {
    now: () => new Date(nowMs),
    monotonicMs: () => nowMs,
    setTimer: (delayMs, callback) => {
      const timer = { atMs: nowMs + delayMs, callback };
      armed.push(timer);
      return { cancel: () => armed.splice(armed.indexOf(timer), 1) };
    },
  };
  const fire = () => {
    const timer = armed.shift();
    if (timer === undefined) throw new Error("nothing is armed");
    nowMs = timer.atMs - 0.4;
    timer.callback();
  };
  return { clock, fire, armed };
}

describe("RetrySchedule", () => {
  it("counts a retry as due when its timer fires, though a fraction of a millisecond early", () => {
    const { clock, fire, armed } = earlyClock();
    const due: boolean[] = [];
    using schedule = new RetrySchedule({ clock, onDue: (id) => due.push(schedule.isDue(id)) });
    for (let failure = 0; failure < 4; failure++) {
      schedule.failed("sb-a");
      expect(schedule.isDue("sb-a")).toBe(false);
      fire();
    }
    expect(due).toEqual([true, true, true, true]);
    expect(armed).toEqual([]);
  });

  it("tries at once what is hastened, once, and waits as long as before where that fails", () => {
    const { clock, fire, armed } = earlyClock();
    const due: string[] = [];
    using schedule = new RetrySchedule({ clock, onDue: (id) => due.push(id) });
    schedule.hasten("sb-a");
    expect(due).toEqual([]);
    schedule.failed("sb-a");
    fire();
    schedule.failed("sb-a");
    schedule.hasten("sb-a");
    schedule.hasten("sb-a");
    expect([due, armed, schedule.isDue("sb-a")]).toEqual([["sb-a", "sb-a"], [], true]);
    schedule.failed("sb-a");
    expect(armed.map(({ atMs }) => Math.round(atMs - clock.monotonicMs()))).toEqual([4_000]);
  });

  it("waits one second, then twice as long each time, up to five minutes, and counts a failure told twice once", () => {
    const { clock, fire, armed } = earlyClock();
    using schedule = new RetrySchedule({ clock, onDue: () => undefined });
    const delays: number[] = [];
    for (let failure = 0; failure < 11; failure++) {
      const beforeMs = clock.monotonicMs();
      schedule.failed("sb-a");
      schedule.failed("sb-a");
      expect(armed).toHaveLength(1);
      delays.push(Math.round((armed[0]?.atMs ?? 0) - beforeMs));
      fire();
    }
    expect(delays.slice(0, 4)).toEqual([1_000, 2_000, 4_000, 8_000]);
    expect(delays.at(-1)).toBe(300_000);
  });
});
