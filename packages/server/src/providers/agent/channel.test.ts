import { Duplex } from "node:stream";
import { expect, it } from "vitest";
import { BadRequest } from "../../ports/index.ts";
import { AgentChannel, type AgentRequest } from "./channel.ts";
import type { AgentConnection } from "./connection.ts";
import { unixDialer } from "./dialers.ts";
import { fakeAgent } from "./fake-agent.ts";
import { Collect } from "./operation.ts";

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
    const channel = new AgentChannel({ dial: unixDialer(agent.path), token: "t", name: "sb" });
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
  });
  await channel.call(growing, { signal, fresh: true });
  await channel.call(growing, { signal, fresh: true });
  const [hello = 0, helloAndRequest = 0] = sent;
  expect(helloAndRequest).toBeGreaterThan(hello);
  channel.close();
});

it("what an agent cannot do is refused before anything of it is sent", async () => {
  await using agent = await fakeAgent((_request, connection) => connection.answer({ fine: true }));
  const channel = new AgentChannel({ dial: unixDialer(agent.path), token: "t", name: "sb" });
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
