import { describe, expect, it } from "vitest";
import { FailingProviders } from "./failing-providers.ts";

const failed = (startedMs: number) => ({ startedMs, error: "no engine", unanswered: false });
const slow = (startedMs: number) => ({ startedMs, error: "the deadline passed", unanswered: true });
const well = (startedMs: number) => ({ startedMs, error: undefined, unanswered: false });

describe("FailingProviders", () => {
  it("refuses from a check that failed to one that did not, naming provider and reason", () => {
    const failing = new FailingProviders();
    expect(failing.refusal("one")).toBeUndefined();
    expect(failing.checked("one", failed(0))).toBe(false);
    expect(failing.refusal("one")).toMatch(/"one" is not healthy.*: no engine/);
    expect(failing.refusal("two")).toBeUndefined();
    failing.checked("one", well(1));
    expect(failing.refusal("one")).toBeUndefined();
  });

  it("wants a second look at one that was only slow, and refuses after that", () => {
    const failing = new FailingProviders();
    expect(failing.checked("one", slow(0))).toBe(true);
    expect(failing.refusal("one")).toBeUndefined();
    expect(failing.checked("one", slow(5_000))).toBe(false);
    expect(failing.refusal("one")).toMatch(/the deadline passed/);
  });

  it("takes a spawn that succeeded since a check began for the better word", () => {
    const failing = new FailingProviders();
    failing.checked("one", failed(0));
    failing.spawned("one", 10);
    expect(failing.refusal("one")).toBeUndefined();
    failing.checked("one", failed(5));
    expect(failing.refusal("one")).toBeUndefined();
    failing.checked("one", failed(11));
    expect(failing.refusal("one")).toMatch(/no engine/);
  });
});
