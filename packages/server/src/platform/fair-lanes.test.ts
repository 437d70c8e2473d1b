import { expect, it } from "vitest";
import { FairLanes, type Lane } from "./fair-lanes.ts";

const turn = () => new Promise<void>((resolve) => setImmediate(resolve));

it("lets owners who wait in by turns until they have equal shares, and one alone as many as there are lanes", async () => {
  const lanes = new FairLanes(4);
  const entered: { ownerId: string; lane: Lane }[] = [];
  const enter = (ownerId: string) =>
    void lanes.enter(ownerId).then((lane) => entered.push({ ownerId, lane }));
  for (let i = 0; i < 10; i++) enter("a");
  for (let i = 0; i < 3; i++) enter("b");
  enter("c");
  await turn();
  const order = () => entered.map(({ ownerId }) => ownerId).join("");
  expect(order()).toBe("aaaa");
  for (let i = 0; i < 10; i++) {
    entered[i]?.lane.leave();
    await turn();
  }
  expect(order()).toBe("aaaabcababaaaa");
});

it("refuses those who wait, and lets others in afterwards", async () => {
  const lanes = new FairLanes(1);
  const first = await lanes.enter("a");
  const waits = lanes.enter("a");
  lanes.refuse(new Error("over"));
  await expect(waits).rejects.toThrow("over");
  first.leave();
  (await lanes.enter("b")).leave();
});

it("who leaves the line before its turn takes no lane, and who has one keeps it", async () => {
  const lanes = new FairLanes(1);
  const first = await lanes.enter("a");
  const [gone, late] = [new AbortController(), new AbortController()];
  const left = lanes.enter("b", gone);
  const second = lanes.enter("c", late);
  gone.abort(new Error("left"));
  await expect(left).rejects.toThrow("left");
  first.leave();
  late.abort(new Error("too late"));
  const third = lanes.enter("b");
  expect(lanes.full).toBe(true);
  (await second).leave();
  (await third).leave();
  expect(lanes.full).toBe(false);
  await expect(lanes.enter("a", gone)).rejects.toThrow("left");
});
