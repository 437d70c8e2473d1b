import { PassThrough } from "node:stream";
import { expect, it } from "vitest";
import { EarlyBinding, firstBy } from "./early-binding.ts";
import type { RuntimeRecord } from "./runtime-record.ts";

const recordOf = (token: string) => ({ token }) as RuntimeRecord;
const [first, second] = [recordOf("1"), recordOf("2")];

function clientThat() {
  const closed: string[] = [];
  return { closed, client: { [Symbol.asyncDispose]: async () => void closed.push("closed") } };
}

it("what was said to the agent of the launch that came to its end is taken, and not closed", async () => {
  const early = new EarlyBinding();
  const { client, closed } = clientThat();
  early.begin(first, Promise.resolve({ client }));
  expect(await early.take(first)).toEqual({ client });
  expect(early.take(first)).toBeUndefined();
  expect(closed).toEqual([]);
});

it.each([[second], [undefined]])("what another launch began is closed", async (record) => {
  const early = new EarlyBinding();
  const { client, closed } = clientThat();
  early.begin(first, Promise.resolve({ client }));
  expect(early.take(record)).toBeUndefined();
  await Promise.resolve();
  expect(closed).toEqual(["closed"]);
});

it("what failed is told to who takes it, and to nobody else", async () => {
  const early = new EarlyBinding();
  early.begin(first, Promise.reject(new Error("broke")));
  early.begin(second, Promise.reject(new Error("broke as well")));
  await expect(early.take(second)).rejects.toThrow("broke as well");
});

it("a connection that is there is dialled once, and one that ended not at all", async () => {
  const [there, ended, dialled] = [new PassThrough(), new PassThrough().destroy(), new PassThrough()];
  const options = { signal: new AbortController().signal };
  const dial = firstBy(there, async () => dialled);
  expect([await dial(options), await dial(options)]).toEqual([there, dialled]);
  expect(await firstBy(ended, async () => dialled)(options)).toBe(dialled);
});
