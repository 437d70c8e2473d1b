import { expect, test } from "vitest";
import { FakeClock } from "../testing/fake-clock.ts";
import { localUser, type Principal } from "./principal.ts";
import { Tickets } from "./tickets.ts";

const ann: Principal = { ...localUser, name: "ann" };

test("a ticket is good once, for its sandbox, within a minute", async () => {
  const clock = new FakeClock();
  const tickets = new Tickets({ clock });
  const { ticket, expiresAt } = tickets.issue(ann, "sb-1");
  expect(expiresAt.getTime() - clock.now().getTime()).toBe(60_000);
  await clock.advance(59_999);
  expect(tickets.redeem(ticket, "sb-1")).toBe(ann);
  expect(tickets.redeem(ticket, "sb-1")).toBeUndefined();
  const late = tickets.issue(ann, "sb-1").ticket;
  await clock.advance(60_000);
  expect(tickets.redeem(late, "sb-1")).toBeUndefined();
  expect(tickets.size).toBe(0);
});

test.each([3_600_000, -3_600_000])("its minute is the same when the clock is set by %d ms", async (byMs) => {
  const clock = new FakeClock();
  const tickets = new Tickets({ clock });
  const [used, left] = [tickets.issue(ann, "sb-1").ticket, tickets.issue(ann, "sb-1").ticket];
  clock.jump(byMs);
  await clock.advance(59_999);
  expect(tickets.redeem(used, "sb-1")).toBe(ann);
  await clock.advance(1);
  expect(tickets.redeem(left, "sb-1")).toBeUndefined();
});

test("one that is tried on another sandbox is spent", () => {
  const tickets = new Tickets({ clock: new FakeClock() });
  const { ticket } = tickets.issue(ann, "sb-1");
  expect(tickets.redeem(ticket, "sb-2")).toBeUndefined();
  expect(tickets.redeem(ticket, "sb-1")).toBeUndefined();
});

test("a key that makes very many is refused for a while, others are not", async () => {
  const clock = new FakeClock();
  const tickets = new Tickets({ clock });
  const first = tickets.issue(ann, "sb-1").ticket;
  for (let i = 1; i < 1_000; i++) tickets.issue(ann, "sb-1");
  expect(() => tickets.issue(ann, "sb-1")).toThrow(/1000 tickets that were not used/);
  tickets.issue({ ...ann, name: "bob" }, "sb-1");
  tickets.redeem(first, "sb-1");
  tickets.issue(ann, "sb-1");
  await clock.advance(60_000);
  tickets.issue(ann, "sb-1");
  expect(tickets.size).toBe(1);
});
