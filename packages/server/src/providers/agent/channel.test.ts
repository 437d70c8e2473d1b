import { Duplex } from "node:stream";
import { expect, it, vi } from "vitest";
import { BadRequest, type ExecId } from "../../ports/index.ts";
import { AgentChannel, type AgentRequest } from "./channel.ts";
import type { AgentConnection } from "./connection.ts";
import { unixDialer } from "./dialers.ts";
import type { EventsFeed } from "./events-feed.ts";
import { AgentExecs } from "./exec-operations.ts";
import { ExecFollow } from "./exec-view.ts";
import { type FakeConnection, fakeAgent } from "./fake-agent.ts";
import { Download } from "./file-streams.ts";
import { frameKinds } from "./frames.ts";
import { Collect } from "./operation.ts";
import { SharedPlaces } from "./places.ts";

const { signal } = new AbortController();

function growing(features: ReadonlySet<string>): AgentRequest {
  return features.has("later") ? { op: "sandbox.info", later: true } : { op: "sandbox.info" };
}

it("a request with a new field leaves only once the agent has said that it knows it", async () => {
  for (const features of [["exec", "later"], ["exec"], undefined]) {
    await using agent = await fakeAgent(
      (_request, connection) => connection.answer({}),
      () => undefined,
      features,
    );
    const channel = new AgentChannel({ dial: unixDialer(agent.path), token: "t", name: "sb", owner: "" });
    await channel.call(growing, { signal });
    await channel.call(growing, { signal, fresh: true });
    const expected = growing(new Set(features));
    expect(agent.requests).toEqual([expected, expected]);
    channel.close();
  }
});

it("only the first such request waits for the welcome", async () => {
  await using agent = await fakeAgent(
    (_request, connection) => connection.answer({}),
    () => undefined,
    ["later"],
  );
  const sent: number[] = [];
  const dialReal = unixDialer(agent.path);
  const channel = new AgentChannel({
    dial: async (options) => {
      const socket = await dialReal(options);
      let frames = 0;
      return new Duplex({
        read: () => undefined,
        write: (chunk: Buffer, _encoding, done) => {
          if (frames === 0) sent.push(chunk.length);
          frames += 1;
          socket.write(chunk, done);
        },
        construct(done) {
          socket.on("data", (chunk: Buffer) => this.push(chunk));
          done();
        },
        destroy: (_error, done) => {
          socket.destroy();
          done(null);
        },
      });
    },
    token: "t",
    name: "sb",
    owner: "",
  });
  await channel.call(growing, { signal, fresh: true });
  await channel.call(growing, { signal, fresh: true });
  const [hello = 0, helloAndRequest = 0] = sent;
  expect(helloAndRequest).toBeGreaterThan(hello);
  channel.close();
});

it("what an agent cannot do is refused before anything of it is sent", async () => {
  await using agent = await fakeAgent((_request, connection) => connection.answer({ fine: true }));
  const channel = new AgentChannel({ dial: unixDialer(agent.path), token: "t", name: "sb", owner: "" });
  const impossible = () => {
    throw new BadRequest("this sandbox is older than that");
  };
  for (let round = 0; round < 2; round += 1) {
    await expect(channel.call(impossible, { signal })).rejects.toThrow("older than that");
  }
  expect(await channel.call({ op: "sandbox.info" }, { signal })).toEqual({ fine: true });
  expect([agent.connections, agent.requests.length]).toEqual([1, 1]);
  channel.close();
});

it("what held a listing does not touch the connection once the listing has failed", async () => {
  const held = Promise.withResolvers<void>();
  const calls: string[] = [];
  const connection = {
    pause: () => calls.push("pause"),
    resume: () => calls.push("resume"),
    destroy: () => calls.push("destroy"),
  } as unknown as AgentConnection;
  const collect = new Collect(() => held.promise);
  collect.attach(connection);
  collect.onEvent({});
  collect.fail(new BadRequest("refused"));
  await expect(collect.done).rejects.toThrow("refused");
  expect(calls).toEqual(["pause", "resume"]);
  held.resolve();
  await new Promise((resolve) => setImmediate(resolve));
  expect(calls).toEqual(["pause", "resume"]);
});

const info = { op: "sandbox.info" } as const;

it("where dialling is costly a hundred operations share what few dials bring, also those that last; none is stuck behind one that ended", async () => {
  await using agent = await fakeAgent((request, connection) => {
    if (request.op === "exec.attach") connection.frame(frameKinds.reply, {});
    else connection.answer({});
  });
  const dial = unixDialer(agent.path);
  let [dialling, most] = [0, 0];
  const channel = new AgentChannel({
    dial: async (options) => {
      most = Math.max(most, ++dialling);
      await new Promise((resolve) => setTimeout(resolve, 20));
      dialling -= 1;
      return dial(options);
    },
    dialsAtOnce: 4,
    token: "t",
    name: "sb",
    owner: "",
  });
  const gone = new AbortController();
  const leaving = Array.from({ length: 10 }, () => channel.call(info, { signal: gone.signal }));
  const calls = Array.from({ length: 100 }, () => channel.call(info, { signal }));
  gone.abort(new Error("left"));
  expect(new Set((await Promise.allSettled(leaving)).map(({ status }) => status))).toEqual(
    new Set(["rejected"]),
  );
  await Promise.all(calls);
  expect(most).toBe(4);
  expect(agent.connections).toBeLessThan(25);

  // Those that last keep their connections, and the others get some all the same.
  const lasting = Array.from({ length: 20 }, () => {
    const follow = new Collect(() => undefined);
    channel.begin({ op: "exec.attach", exec_id: "ex-abcdefgh", from: 0, follow: true }, follow, signal);
    follow.done.catch(() => undefined);
    return follow;
  });
  await channel.call(info, { signal });
  expect(lasting.every((follow) => !follow.over)).toBe(true);
  const impossible = () => {
    throw new BadRequest("cannot be sent");
  };
  const mixed = Array.from({ length: 40 }, (_, n) =>
    channel.call(n % 4 === 0 ? impossible : info, { signal, fresh: n % 4 === 1 }),
  );
  const sent = (await Promise.allSettled(mixed)).map(({ status }) => status === "fulfilled");
  expect(sent).toEqual(mixed.map((_, n) => n % 4 !== 0));
  expect(most).toBe(4);
  const late = Array.from({ length: 30 }, () => channel.call({ ...info }, { signal, fresh: true }));
  channel.close();
  for (const { status } of await Promise.allSettled(late)) expect(status).toBe("rejected");
});

/** An agent that answers when it is told to. */
async function slowAgent(options: { shared?: SharedPlaces; owner?: string } = {}) {
  let waiting: FakeConnection[] = [];
  let answers = false;
  const agent = await fakeAgent((request, connection) => {
    if (request.op === "exec.attach") connection.frame(frameKinds.reply, {});
    else if (answers || request.op === "sandbox.expiry") connection.answer({});
    else waiting.push(connection);
  });
  const channel = new AgentChannel({
    dial: unixDialer(agent.path),
    token: "t",
    name: "sb-busy",
    owner: "",
    ...options,
  });
  return {
    agent,
    channel,
    answer() {
      answers = true;
      for (const connection of waiting) connection.answer({});
      waiting = [];
    },
    async [Symbol.asyncDispose]() {
      channel.close();
      await agent[Symbol.asyncDispose]();
    },
  };
}

const outcome = (call: Promise<unknown>) =>
  call.then(
    () => "answered",
    (error: Error & { retryAfterS?: number }) => `${error.message} ${error.retryAfterS}`,
  );

it("no more than 64 operations are under way at an agent; the others wait, and are refused when too many do", async () => {
  await using slow = await slowAgent();
  const { agent, channel } = slow;
  const calls = Array.from({ length: 64 + 1_024 }, () => channel.call(info, { signal }));
  const refused = await Promise.all(
    Array.from({ length: 100 }, () => outcome(channel.call(info, { signal }))),
  );
  for (const told of refused) expect(told).toMatch(/sandbox sb-busy is busy: 64 .* 1024 wait; try again 1$/);
  await expect.poll(() => agent.requests.length, { timeout: 10_000 }).toBe(64);
  // What only the service asks for does not wait.
  await channel.call({ op: "sandbox.expiry" }, { signal });
  expect([agent.requests.length, agent.connections]).toEqual([65, 65]);
  slow.answer();
  await Promise.all(calls);
  expect(agent.requests).toHaveLength(64 + 1_024 + 1);
});

it("file operations and transfers wait for the few threads that an agent has for them, and others not behind these", async () => {
  await using slow = await slowAgent();
  const { agent, channel } = slow;
  const calls = Array.from({ length: 100 }, () => outcome(channel.call({ op: "file.stat" }, { signal })));
  const reads = Array.from({ length: 100 }, () => new Download());
  for (const read of reads) channel.begin({ op: "file.read" }, read, signal);
  calls.push(...reads.map((read) => outcome(read.reply)), outcome(channel.call(info, { signal })));
  const asked = () => Map.groupBy(agent.requests, ({ op }) => op);
  const underWay = () => ["file.stat", "file.read", "sandbox.info"].map((op) => asked().get(op)?.length);
  await expect.poll(underWay).toEqual([12, 12, 1]);
  slow.answer();
  expect(new Set(await Promise.all(calls))).toEqual(new Set(["answered"]));
  expect(underWay()).toEqual([100, 100, 1]);
});

it("who waits ten seconds for a thread is refused, and told when to come again", async () => {
  vi.useFakeTimers({ toFake: ["setTimeout", "clearTimeout"] });
  try {
    await using slow = await slowAgent();
    const calls = Array.from({ length: 13 }, () =>
      outcome(slow.channel.call({ op: "file.stat" }, { signal })),
    );
    await expect.poll(() => slow.agent.requests.length).toBe(12);
    vi.advanceTimersByTime(10_000);
    expect(await calls.at(-1)).toMatch(/sandbox sb-busy is busy: 12 .* within 10000 ms; try again 1$/);
    slow.answer();
    await Promise.all(calls);
  } finally {
    vi.useRealTimers();
  }
});

it("who leaves the line makes room in it, and nothing is sent for him", async () => {
  await using slow = await slowAgent();
  const { agent, channel } = slow;
  const calls = Array.from({ length: 64 }, () => channel.call(info, { signal }));
  const left = new AbortController();
  const leaving = Array.from({ length: 1_024 }, () =>
    outcome(channel.call({ op: "exec.list" }, { signal: left.signal })),
  );
  expect(await outcome(channel.call(info, { signal }))).toContain("is busy");
  left.abort(new Error("gone"));
  expect(new Set(await Promise.all(leaving))).toEqual(new Set(["gone undefined"]));
  const later = channel.call(info, { signal });
  slow.answer();
  await Promise.all([...calls, later]);
  expect(agent.requests.filter(({ op }) => op === "exec.list")).toEqual([]);
});

it("those who follow commands keep nobody waiting", async () => {
  await using slow = await slowAgent();
  const { agent, channel } = slow;
  slow.answer();
  const follows = Array.from({ length: 200 }, () => new ExecFollow({ name: "sb" }));
  for (const follow of follows) channel.begin({ op: "exec.attach" }, follow, signal);
  await Promise.all(follows.map((follow) => follow.reply));
  expect(agent.open).toBe(200);
  await channel.call(info, { signal });
  const views = follows.map((follow) => follow.view("ex-1" as ExecId, 1, undefined, { counted: false }));
  for (const view of views) await view[Symbol.asyncDispose]();
});

/** Begins and waits for what was answered. */
async function opened(channel: AgentChannel, count: number, options: { follower: boolean }) {
  const follows = Array.from({ length: count }, () => new ExecFollow({ name: "sb", ...options }));
  for (const follow of follows) channel.begin({ op: "exec.attach" }, follow, signal);
  await Promise.all(follows.map((follow) => follow.reply));
  return follows;
}

it("many who follow commands leave room for starts; who gets no place in time is refused, and may come again", async () => {
  vi.useFakeTimers({ toFake: ["setTimeout", "clearTimeout"] });
  try {
    await using slow = await slowAgent();
    const { agent, channel } = slow;
    const followers = await opened(channel, 768, { follower: true });
    const wait = (follower: boolean) => {
      const follow = new ExecFollow({ name: "sb", follower });
      channel.begin({ op: "exec.attach" }, follow, signal);
      return outcome(follow.reply);
    };
    const early = wait(true);
    vi.advanceTimersByTime(10_000);
    expect(await early).toMatch(/sandbox sb-busy is busy: 768 readers .* within 10000 ms; try again 1$/);
    const waiting = [wait(true), wait(true)];
    const others = await opened(channel, 128, { follower: false });
    waiting.push(wait(false));
    expect(agent.requests).toHaveLength(896);
    vi.advanceTimersByTime(9_999);
    // The first in the line has a place in time.
    await followers[0]?.dispose();
    expect(await waiting.pop()).toBe("answered");
    vi.advanceTimersByTime(1);
    for (const told of await Promise.all(waiting))
      expect(told).toMatch(/sandbox sb-busy is busy: 896 operations .* within 10000 ms; try again 1$/);
    waiting.push(wait(false));
    vi.advanceTimersByTime(10_000);
    expect(await waiting.at(-1)).toMatch(/sandbox sb-busy is busy: 896 operations .*; try again 1$/);
    for (const follow of [...others, ...followers.slice(1, 3)]) await follow.dispose();
    expect(await Promise.all([wait(true), wait(false)])).toEqual(["answered", "answered"]);
  } finally {
    vi.useRealTimers();
  }
});

it("what lasts is bounded over all sandboxes, an owner's as many as are left for others, and those who follow leave room for the rest; nothing of what is refused is sent", async () => {
  const shared = new SharedPlaces({ most: 16, mostFollowers: 8 });
  await using one = await slowAgent({ shared, owner: "bob" });
  await using two = await slowAgent({ shared, owner: "bob" });
  await using three = await slowAgent({ shared, owner: "alice" });
  const begin = ({ channel }: typeof one, follower: boolean) => {
    const follow = new ExecFollow({ name: "sb", follower });
    channel.begin({ op: "exec.attach" }, follow, signal);
    return outcome(follow.reply);
  };
  const followers = [
    ...(await opened(one.channel, 2, { follower: true })),
    ...(await opened(two.channel, 1, { follower: true })),
  ];
  for (const place of [one, two])
    expect(await begin(place, true)).toMatch(
      /^the service is busy: 3 readers follow commands in sandboxes of this owner, 3 of at most 8 in all; .* or try again 1$/,
    );
  const others = await opened(one.channel, 3, { follower: false });
  expect(await begin(two, false)).toMatch(
    /^the service is busy: 6 operations that last .* of this owner, 6 of at most 16 in all; .* or try again 1$/,
  );
  expect([one.agent.requests.length, two.agent.requests.length]).toEqual([5, 1]);
  const ofAlice = await opened(three.channel, 2, { follower: true });
  expect(await begin(three, true)).toMatch(/^the service is busy: 2 readers follow .* 5 of at most 8 in all/);
  ofAlice.push(...(await opened(three.channel, 1, { follower: false })));
  expect(await begin(three, false)).toMatch(/^the service is busy: 3 operations .* 9 of at most 16 in all/);
  // What is answered at once has its own places.
  one.answer();
  await one.channel.call(info, { signal });
  for (const follow of [...ofAlice, followers[0]]) await follow?.dispose();
  expect(await begin(two, true)).toBe("answered");
  // A sandbox that ends gives its places back.
  one.channel.close();
  const again = await opened(two.channel, 3, { follower: false });
  for (const follow of [...followers, ...others, ...again]) await follow.dispose();
});

it("who goes on with a command whose connection broke has a place wherever one is free, however large the owner's share is", async () => {
  const shared = new SharedPlaces({ most: 16, mostFollowers: 16 });
  await using one = await slowAgent({ shared, owner: "bob" });
  await using two = await slowAgent({ shared, owner: "alice" });
  const begin = (again: boolean) => {
    const begun = vi.spyOn(one.channel, "begin");
    const execs = new AgentExecs({
      channel: one.channel,
      feed: {} as EventsFeed,
      name: "sb",
      groups: undefined,
    });
    const reading = { from: 0, follow: true, lossless: true, again, signal };
    execs.attach("ex-one" as ExecId, reading).catch(() => undefined);
    const follow = begun.mock.lastCall?.[1] as ExecFollow;
    begun.mockRestore();
    return { follow, told: outcome(follow.reply) };
  };
  const own = await opened(one.channel, 6, { follower: false });
  const theirs = await opened(two.channel, 3, { follower: false });
  // Connections of the first break.
  for (const follow of own.splice(0, 2)) await follow.dispose();
  theirs.push(...(await opened(two.channel, 1, { follower: false })));
  expect(await begin(false).told).toMatch(/^the service is busy: 4 operations .* 8 of at most 16 in all/);
  const back = [begin(true), begin(true)];
  for (const { told } of back) expect(await told).toBe("answered");
  for (let free = shared.most - 10; free > 0; free -= 1) shared.take("others", false);
  expect(await begin(true).told).toMatch(/^the service is busy: 6 operations .* 16 of at most 16 in all/);
  for (const { follow } of back) follow.cancel(undefined);
  for (const follow of [...own, ...theirs]) await follow.dispose();
});

it("however many owners take what they can of the places over all sandboxes, one who comes new finds some", () => {
  const shared = new SharedPlaces({ most: 16_384, mostFollowers: 12_288 });
  const takeAll = (owner: string, follower: boolean) => {
    let taken = 0;
    for (; shared.refusal(owner, { follower, again: false }) === undefined; taken += 1)
      shared.take(owner, follower);
    return taken;
  };
  const had = Array.from({ length: 20 }, (_, n) => [
    takeAll(`greedy-${n}`, true),
    takeAll(`greedy-${n}`, false),
  ]);
  expect(had[0]).toEqual([4_608, 1_536]);
  for (let n = 0; n < 30; n += 1)
    expect([takeAll(`new-${n}`, true), takeAll(`new-${n}`, false)]).toEqual([64, 0]);
  expect(takeAll("greedy-0", true)).toBe(0);
  for (const [n, [followers = 0, others = 0]] of had.entries()) {
    for (let k = 0; k < followers; k += 1) shared.give(`greedy-${n}`, true);
    for (let k = 0; k < others; k += 1) shared.give(`greedy-${n}`, false);
  }
  expect(takeAll("greedy-0", true)).toBeGreaterThan(3_500);
});

it("closing the channel ends what waits for a place as well", async () => {
  await using slow = await slowAgent();
  const calls = Array.from({ length: 100 }, () => outcome(slow.channel.call(info, { signal })));
  await expect.poll(() => slow.agent.requests.length, { timeout: 10_000 }).toBe(64);
  slow.channel.close();
  for (const told of await Promise.all(calls)) expect(told).toMatch(/ended|broke/);
});

it("an agent that never ends what it has answered holds neither connections nor places", async () => {
  vi.useFakeTimers({ toFake: ["setTimeout", "clearTimeout"] });
  try {
    await using agent = await fakeAgent((_request, connection) => connection.frame(frameKinds.reply, {}));
    const channel = new AgentChannel({ dial: unixDialer(agent.path), token: "t", name: "sb", owner: "" });
    for (let round = 0; round < 3; round += 1) {
      await Promise.all(Array.from({ length: 64 }, () => channel.call(info, { signal })));
      vi.advanceTimersByTime(10_000);
    }
    for (let turn = 0; agent.open > 0 && turn < 10_000; turn += 1)
      await new Promise((resolve) => setImmediate(resolve));
    expect([agent.connections, agent.open]).toEqual([3 * 64, 0]);
    channel.close();
  } finally {
    vi.useRealTimers();
  }
});
