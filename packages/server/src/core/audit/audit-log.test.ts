import { expect, it } from "vitest";
import { type Logger, silentLogger } from "../../platform/logger.ts";
import { StorageFull } from "../../ports/errors.ts";
import { FakeClock } from "../testing/fake-clock.ts";
import { AuditLog } from "./audit-log.ts";

it.each([
  [401, false, true],
  [404, false, true],
  [503, false, true],
  [204, false, false],
  [503, true, false],
])(
  "a call that is answered %i, by who may administer (%s), is a stranger's: %s",
  async (status, mayAdminister, strangers) => {
    const parts: unknown[] = [];
    const audit = new AuditLog({
      store: {
        append: async (_row: unknown, part: { ofStrangers?: number }) =>
          void parts.push(part.ofStrangers !== undefined),
      } as never,
      clock: new FakeClock(),
      logger: silentLogger,
      retention: { ageMs: 1, count: 100 },
    });
    const text = { path: "/", method: "PUT", actor: "reader", requestId: "", remoteAddr: "", userAgent: "" };
    await audit.record({ ...text, status, mayAdminister } as never);
    expect(parts).toEqual([strangers]);
  },
);

it("refused calls that no record has are told as they become many, once there is room, and when the service stops", async () => {
  const told: unknown[] = [];
  const store = { full: true };
  const audit = new AuditLog({
    store: {
      append: async () => {
        if (store.full) throw new StorageFull("the disk is full");
      },
    } as never,
    clock: new FakeClock(),
    logger: { ...silentLogger, warn: (fields: object) => void told.push(fields) } as unknown as Logger,
    retention: { ageMs: 1, count: 100 },
  });
  const text = { path: "/", method: "PUT", actor: "reader", requestId: "", remoteAddr: "", userAgent: "" };
  const refuse = async (times: number) => {
    for (let left = times; left > 0; left -= 1)
      await audit.record({ ...text, status: 401, mayAdminister: false } as never);
  };
  await refuse(120);
  store.full = false;
  await refuse(1);
  store.full = true;
  await refuse(3);
  audit[Symbol.dispose]();
  audit[Symbol.dispose]();
  const suspended = (calls: number) => ({ event: "audit.suspended", calls });
  expect(told).toEqual([
    ...[suspended(1), suspended(10), suspended(100)],
    { event: "audit.resumed", calls: 120 },
    ...[suspended(1), suspended(3)],
  ]);
  expect(audit.missing).toBe(123);
});
