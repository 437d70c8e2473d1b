import { describe, expect, test } from "vitest";
import { ShuttingDown } from "../platform/deadline.ts";
import { CallsUnderWay, type CallUnderWay } from "./request-context.ts";

const isCut = (call: CallUnderWay) => call.signal.reason instanceof ShuttingDown;

describe("a stop of the service", () => {
  test("cuts what can be picked up at once, waits for the rest, and cuts what is left when its grace is over", async () => {
    const calls = new CallsUnderWay();
    const [stream, brief, finishing, upload] = [calls.begin(), calls.begin(), calls.begin(), calls.begin()];
    stream.setPatience("none");
    brief.setPatience("brief");
    finishing.setPatience("brief");
    const drained = calls.drain(100);
    expect([stream, brief, finishing, upload].map(isCut)).toEqual([true, false, false, false]);
    stream.end();
    finishing.end();
    await drained;
    expect([brief, finishing, upload].map(isCut)).toEqual([true, false, true]);
  });

  test("is over when the last call is, however long the grace", async () => {
    const calls = new CallsUnderWay();
    const [brief, upload] = [calls.begin(), calls.begin()];
    brief.setPatience("brief");
    const drained = calls.drain(2 ** 31 - 1);
    brief.end();
    upload.end();
    await drained;
    expect([brief, upload].map(isCut)).toEqual([false, false]);
  });

  test("waits for what cannot be repeated longer than for what can", async () => {
    const calls = new CallsUnderWay();
    const [brief, upload] = [calls.begin(), calls.begin()];
    brief.setPatience("brief");
    const cut = new Promise((resolve) => brief.signal.addEventListener("abort", resolve));
    const drained = calls.drain(2 ** 31 - 1);
    await cut;
    expect(isCut(upload)).toBe(false);
    upload.end();
    brief.end();
    await drained;
  });

  test("waits for what is answered at the end, and not for what was cut within its answer", async () => {
    const left = async (mark: (call: ReturnType<CallsUnderWay["begin"]>) => void) => {
      const calls = new CallsUnderWay();
      mark(calls.begin());
      const began = performance.now();
      await calls.drain(1_200);
      return performance.now() - began;
    };
    const [download, upload, other] = await Promise.all([
      left((call) => call.endWithKey(() => true)),
      left((call) => call.endWithKey(() => false)),
      left(() => undefined),
    ]);
    expect(upload - download).toBeGreaterThan(1_000);
    expect(other - download).toBeGreaterThan(1_000);
  });

  test("cuts a stream that begins while it is under way", async () => {
    const calls = new CallsUnderWay();
    const upload = calls.begin();
    const drained = calls.drain(2 ** 31 - 1);
    const late = calls.begin();
    late.setPatience("none");
    expect(isCut(late)).toBe(true);
    late.end();
    upload.end();
    await drained;
  });
});
