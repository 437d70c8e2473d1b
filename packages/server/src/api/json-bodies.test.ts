import { EventEmitter } from "node:events";
import { PassThrough } from "node:stream";
import type { FastifyRequest } from "fastify";
import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { BodyBudget } from "../core/answers/body-budget.ts";
import { refusals } from "../core/answers/testing/budgets.ts";
import { localUser } from "../core/keys/principal.ts";
import { settle } from "../core/testing/fake-clock.ts";
import { FairTurns } from "../platform/fair-turns.ts";
import { systemClock } from "../platform/system-clock.ts";
import { heldBytes } from "../platform/testing/held-memory.ts";
import { DomainError } from "../ports/errors.ts";
import { JsonBodies } from "./json-bodies.ts";
import { takeBody } from "./take-body.ts";

const mib = 1_048_576;

beforeEach(() => void vi.useFakeTimers({ toFake: ["setTimeout", "clearTimeout"] }));
afterEach(() => void vi.useRealTimers());

let passedMs = 0;

async function advance(ms: number): Promise<void> {
  await settle();
  passedMs += ms;
  await vi.advanceTimersByTimeAsync(ms);
  await settle();
}

function setUp(options: { bodyLimit?: number; turns?: FairTurns } = {}) {
  const clock = { ...systemClock, monotonicMs: () => passedMs };
  const budget = new BodyBudget({ totalBytes: 16 * mib, waitMs: 10_000, clock, refusals });
  const inputs = new BodyBudget({ totalBytes: 12 * mib, waitMs: 10_000, clock, refusals });
  const bodies = new JsonBodies({ budget, inputs, turns: options.turns ?? new FairTurns() });
  const send = (headers: Record<string, string> = {}, ip = "192.0.2.1") => {
    const response = Object.assign(new EventEmitter(), { closed: false });
    const payload = new PassThrough();
    const request = {
      method: "POST",
      headers,
      ip,
      principal: localUser,
      response,
      routeOptions: { url: "/x", bodyLimit: options.bodyLimit ?? 4 * mib, config: {} },
    } as unknown as FastifyRequest;
    const ended = Promise.withResolvers<unknown>();
    bodies.read(request, payload, (error, body) =>
      error === null ? ended.resolve(body) : ended.reject(error),
    );
    ended.promise.catch(() => undefined);
    return { request, payload, ended: ended.promise, answered: () => void response.emit("close") };
  };
  return { budget, send };
}
const refusal = (ended: Promise<unknown>) =>
  ended.then(
    () => "taken",
    (error) => (error instanceof DomainError ? error.code : error),
  );
const text = (bytes: number) => Buffer.from(JSON.stringify({ a: "x".repeat(bytes) }));

test("a body keeps its part of the memory until its request is answered", async () => {
  const { budget, send } = setUp();
  const bytes = text(mib);
  const { payload, ended, answered } = send({ "content-length": String(bytes.length) });
  expect(budget.heldBytes).toBe(2 * 65_536);
  payload.end(bytes);
  expect(await ended).toEqual(JSON.parse(bytes.toString()));
  expect([budget.heldBytes, vi.getTimerCount()]).toEqual([2 * bytes.length, 0]);
  answered();
  expect(budget.heldBytes).toBe(0);
});

test("a body that is taken keeps what is made of it alone", async () => {
  const { budget, send } = setUp();
  const { request, payload, ended, answered } = send();
  payload.end(text(mib));
  const body = (await ended) as { a: string };
  const taken = takeBody(Object.assign(request, { body }), {
    make: ({ a }) => a.slice(0, mib / 2),
    uses: (made) => made.length,
  });
  expect(taken).toHaveLength(mib / 2);
  expect([budget.heldBytes, request.body]).toEqual([mib / 2, undefined]);
  answered();
  expect(budget.heldBytes).toBe(0);
});

test.each([
  ["much", mib],
  ["little", 100],
])("%s of a body is kept beyond the answer until it is let go of, within the bound", async (_how, length) => {
  const { budget, send } = setUp();
  const sent = async () => {
    const { request, payload, ended, answered } = send();
    payload.end(text(length));
    takeBody(Object.assign(request, { body: (await ended) as { a: string } }), {
      make: ({ a }) => a.slice(0, length / 2),
      uses: (made) => made.length,
    });
    return { answered, memory: request.bodyMemory };
  };
  const first = await sent();
  const { signal } = new AbortController();
  await first.memory?.keep(length / 2, signal);
  first.answered();
  expect(budget.heldBytes).toBe(length / 2);
  const second = await sent();
  second.answered();
  const refused = second.memory?.keep(6 * mib, signal).catch((error) => String(error));
  await advance(10_000);
  expect(await refused).toContain("fill your share");
  first.memory?.letGo(0);
  first.memory?.letGo(0);
  expect(budget.heldBytes).toBe(0);
});

test("input that commands do not read leaves room for bodies that are read, whoever gave how much", async () => {
  const { budget, send } = setUp();
  const { signal } = new AbortController();
  for (let n = 0; n < 40; n++) {
    const { request, payload, ended, answered } = send({ "x-user-id": `o${n}` }, `192.0.2.${n % 4}`);
    payload.end(text(mib));
    const taken = await Promise.race([refusal(ended), settle().then(() => "waits")]);
    if (taken === "taken") request.bodyMemory?.keep(2 * mib, signal).catch(() => undefined);
    await settle();
    answered();
  }
  expect(budget.heldBytes).toBeGreaterThan(11 * mib);
  const { payload, ended } = send({ "content-length": String(mib) }, "192.0.2.9");
  payload.end(text(mib).subarray(8));
  expect(await Promise.race([refusal(ended), settle().then(() => "waits")])).toBe("bad_request");
});

test("a body of pieces of one byte holds what it is charged for", async () => {
  const { budget, send } = setUp();
  const { payload, ended } = send();
  const before = await heldBytes();
  payload.emit("data", Buffer.from('"'));
  for (let n = 0; n < 400_000; n++) payload.emit("data", Buffer.alloc(1, "a"));
  expect((await heldBytes()) - before).toBeLessThan(budget.heldBytes + 2 * mib);
  payload.end('"');
  expect(await ended).toHaveLength(400_000);
});

test("a body whose last piece finds no room is not used before there is", async () => {
  const { send } = setUp();
  const holder = send();
  holder.payload.end(text(4 * mib - 20));
  await holder.ended;
  const { payload, ended } = send();
  payload.end(text(mib));
  expect(await Promise.race([refusal(ended), settle().then(() => "waits")])).toBe("waits");
  holder.answered();
  expect(await refusal(ended)).toBe("taken");
});

test("bodies that end together are used one after the other, with a turn for others when they have taken long", async () => {
  let nowMs = 0;
  const { send } = setUp({ turns: new FairTurns({ now: () => nowMs }) });
  const told: string[] = [];
  const bodies = ["192.0.2.1", "192.0.2.1", "192.0.2.1", "192.0.2.2"].map((ip, n) => {
    const { payload, ended } = send({}, ip);
    const used = ended.then(() => {
      nowMs += 0.2;
      told.push(`${n} of ${ip}`);
    });
    return { payload, used };
  });
  for (const { payload } of bodies) payload.end(text(5_000));
  const count = () => {
    told.push("turn");
    if (told.length < 20) setImmediate(count);
  };
  await new Promise(process.nextTick);
  setImmediate(count);
  await Promise.all(bodies.map(({ used }) => used));
  // The one of another caller comes before the rest of one that has much.
  expect(told.filter((what, at) => what !== "turn" || told[at - 1] !== "turn")).toEqual([
    "0 of 192.0.2.1",
    "3 of 192.0.2.2",
    "turn",
    "1 of 192.0.2.1",
    "2 of 192.0.2.1",
  ]);
});

test("a body that waits for its turn is not used when its caller has left", async () => {
  const { budget, send } = setUp();
  const { request, payload, ended } = send();
  payload.end(text(mib));
  await new Promise(process.nextTick);
  await new Promise(process.nextTick);
  Object.assign(request.response ?? {}, { closed: true });
  await expect(ended).rejects.toThrow("the caller left before its body was read");
  expect(budget.heldBytes).toBe(0);
});

test("a small body, and none at all, take no part", async () => {
  const { budget, send } = setUp();
  const small = send();
  small.payload.write('{"a":');
  small.payload.end("1}");
  expect(await small.ended).toEqual({ a: 1 });
  const none = send();
  none.payload.end();
  expect(await none.ended).toBeUndefined();
  expect([budget.heldBytes, vi.getTimerCount()]).toEqual([0, 0]);
});

test("bodies beyond a caller's share wait unread, then are refused; other callers are not kept waiting", async () => {
  const { budget, send } = setUp();
  const length = String(4 * mib);
  const first = send({ "content-length": length });
  const second = send({ "content-length": length });
  const third = send({ "content-length": length });
  const other = send({ "content-length": length }, "192.0.2.2");
  second.payload.write(Buffer.alloc(mib, "1"));
  await settle();
  expect(budget.heldBytes).toBe(2 * 2 * 65_536);
  expect([second.payload.isPaused(), third.payload.isPaused(), other.payload.isPaused()]).toEqual([
    true,
    true,
    false,
  ]);
  first.payload.end('{"a":1}');
  await first.ended;
  first.answered();
  await settle();
  expect([second.payload.isPaused(), third.payload.isPaused()]).toEqual([false, true]);
  await advance(10_000);
  await expect(third.ended).rejects.toThrow(/^you fill your share of the memory/);
});

test("a body without a length takes its part as it comes", async () => {
  const { budget, send } = setUp();
  const { payload, ended, answered } = send();
  payload.write('"');
  payload.write(Buffer.alloc(mib, "x"));
  await settle();
  expect(budget.heldBytes).toBe(2 * (mib + 1));
  payload.end('"');
  expect(await ended).toHaveLength(mib);
  answered();
  expect(budget.heldBytes).toBe(0);
});

test("a body that stops coming is refused in time and keeps no memory", async () => {
  const { budget, send } = setUp();
  const { payload, ended } = send({ "content-length": String(3 * mib) });
  payload.write('"');
  await advance(29_000);
  payload.write(Buffer.alloc(mib, "x"));
  await advance(29_000);
  expect(budget.heldBytes).toBe(2 * (mib + 1 + 65_536));
  payload.write("x");
  await advance(1_000);
  expect(await refusal(ended)).toBe("timeout");
  expect([budget.heldBytes, vi.getTimerCount()]).toEqual([0, 0]);
});

test("bodies that come slowly keep no room from anybody, and are refused when they hold what others wait for", async () => {
  const { budget, send } = setUp();
  const length = String(4 * mib);
  const slow = ["192.0.2.1", "192.0.2.2", "192.0.2.3", "192.0.2.4"].flatMap((ip) =>
    ["evil1", "evil2"].map((owner) => send({ "content-length": length, "x-user-id": owner }, ip)),
  );
  const take = async (bytes: Buffer) => {
    const { payload, ended, answered } = send({ "content-length": String(bytes.length) }, "192.0.2.9");
    payload.end(bytes);
    const code = await Promise.race([refusal(ended), settle().then(() => "waits")]);
    answered();
    return code;
  };
  expect(await take(text(3 * mib))).toBe("taken");
  for (const { payload } of slow) payload.write(Buffer.concat([Buffer.from('"'), Buffer.alloc(mib, "x")]));
  await settle();
  expect(budget.heldBytes).toBeGreaterThan(15 * mib);
  await advance(5_000);
  expect(await take(text(mib))).toBe("taken");
  const refused = await Promise.all(slow.map(({ ended }) => Promise.race([refusal(ended), settle()])));
  const ended = refused.filter((code) => code === "unavailable").length;
  expect([ended > 0, ended < slow.length / 2]).toEqual([true, true]);
});

test("a body that is told and does not come gives way to a smaller one of the same owner", async () => {
  const { send } = setUp();
  const told = send({ "content-length": String(4 * mib) });
  await advance(5_000);
  const bytes = text(mib);
  const { payload, ended } = send({ "content-length": String(bytes.length) });
  payload.end(bytes);
  expect(await refusal(ended)).toBe("taken");
  await expect(told.ended).rejects.toThrow(/^the body came slowly while others waited/);
});

test("waiting for memory is not coming slowly", async () => {
  const { send } = setUp();
  const holder = send({ "content-length": String(4 * mib) });
  const waits = send({ "content-length": String(3 * mib) });
  holder.payload.write(text(2 * mib));
  await advance(9_000);
  holder.payload.end();
  await holder.ended;
  holder.answered();
  await advance(29_000);
  waits.payload.end('{"a":1}');
  expect(await waits.ended).toEqual({ a: 1 });
  expect(vi.getTimerCount()).toBe(0);
});

test.each([
  ["is longer than its route takes", Buffer.alloc(4 * mib + 1, " "), "too_large"],
  ["holds too much", Buffer.from(`[${"1,".repeat(200_000)}`), "bad_request"],
  ["is no JSON", Buffer.from('{"a":'), "bad_request"],
  ["names a prototype", Buffer.from('{"__proto__":1}'), "bad_request"],
  ["names a prototype in a list", Buffer.from('[1,null,[{"constructor":{"prototype":1}}]]'), "bad_request"],
  ["names too much", Buffer.from(`{"a":{${'"":1,'.repeat(8_192)}"":1}}`), "bad_request"],
  ["is long and no JSON", Buffer.alloc(2 * mib, "1x"), "bad_request"],
])("a body that %s is refused and keeps no memory", async (_what, bytes, code) => {
  const { budget, send } = setUp();
  const { payload, ended } = send();
  payload.end(bytes);
  expect(await refusal(ended)).toBe(code);
  expect([budget.heldBytes, vi.getTimerCount()]).toEqual([0, 0]);
});

test("a body whose length is too much is refused before it comes, with the limit of its route", async () => {
  const { budget, send } = setUp({ bodyLimit: 2 * mib });
  const { ended } = send({ "content-length": String(2 * mib + 1) });
  await expect(ended).rejects.toThrow(
    "the body is larger than the 2 MiB that POST /x takes; no request here needs more",
  );
  expect(budget.heldBytes).toBe(0);
});

test.each([false, true])("a caller that leaves keeps no memory; while it waits for it: %s", async (waits) => {
  const { budget, send } = setUp();
  const holder = waits ? send({ "content-length": String(4 * mib) }) : undefined;
  const { payload, ended } = send({ "content-length": String(3 * mib) });
  payload.write("x");
  payload.destroy(new Error("aborted"));
  expect(await refusal(ended)).toBe("bad_request");
  holder?.answered();
  await settle();
  expect([budget.heldBytes, budget.waiting]).toEqual([0, 0]);
  if (!waits) expect(vi.getTimerCount()).toBe(0);
});
