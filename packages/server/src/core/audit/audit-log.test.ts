import { expect, it } from "vitest";
import { silentLogger } from "../../platform/logger.ts";
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
