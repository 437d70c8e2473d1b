import { Duplex } from "node:stream";
import { finished } from "node:stream/promises";
import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { PortConcurrency } from "./port-concurrency.ts";

beforeEach(() => vi.useFakeTimers({ toFake: ["setTimeout", "clearTimeout"] }));
afterEach(() => vi.useRealTimers());

const connection = () => new Duplex({ read: () => undefined, write: (_chunk, _encoding, done) => done() });

test("a port that somebody waits for is not forgotten with a connection of before it was forgotten last", async () => {
  const ports = new PortConcurrency(() => []);
  const left = ports.begin("sb-1:80");
  left[Symbol.dispose]();
  using _waiting = ports.begin("sb-1:80");
  vi.advanceTimersByTime(1_000);
  expect(ports.mayKeep("sb-1:80")).toBe(false);
  // It was made all the same, for somebody who had left by then.
  const late = connection();
  left.made(late, true);
  const closed = finished(late).catch(() => undefined);
  late.destroy();
  await closed;
  expect(ports.mayKeep("sb-1:80")).toBe(false);
});
