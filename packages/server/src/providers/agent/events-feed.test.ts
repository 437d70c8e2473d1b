import { setImmediate as turn } from "node:timers/promises";
import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";
import { silentLogger } from "../../platform/logger.ts";
import { AgentClient } from "./agent-client.ts";
import { unixDialer } from "./dialers.ts";
import { execId, exit, type FakeAgent, type FakeConnection, fakeAgent, spec } from "./fake-agent.ts";
import { frameKinds } from "./frames.ts";

const options = () => ({ signal: AbortSignal.timeout(5_000) });
const second = { ...spec, execId: `${execId}-2` as typeof execId };

describe("the connection that tells of the ends of commands", () => {
  let agent: FakeAgent;
  let client: AgentClient;
  let commands: FakeConnection[];
  const asked = () => agent.requests.map(({ op }) => op);
  /** What is on its way between the two arrives. */
  const settled = async () => {
    for (let turns = 0; turns < 50; turns += 1) await turn();
  };
  /** The clock stands still meanwhile, which it does not for `expect.poll`. */
  const expectAsked = async (...ops: string[]) => {
    for (let turns = 0; turns < 10_000 && asked().length < ops.length; turns += 1) await turn();
    expect(asked()).toEqual(ops);
  };
  const pass = async (ms: number) => {
    vi.advanceTimersByTime(ms);
    await settled();
  };

  beforeEach(async () => {
    vi.useFakeTimers({ toFake: ["setTimeout", "clearTimeout"] });
    commands = [];
    agent = await fakeAgent((request, connection) => {
      if (request.op === "exec.list") return connection.answer({ execs: [] });
      if (request.op === "sandbox.events") return connection.frame(frameKinds.reply, {});
      if (request.op === "exec.start") commands.push(connection);
      connection.frame(frameKinds.reply, { pid: 3 });
    });
    const dial = unixDialer(agent.path);
    client = new AgentClient({
      dial,
      token: "0".repeat(64),
      name: "sb-test",
      owner: "",
      logger: silentLogger,
    });
    client.onGone(() => undefined);
  });
  afterEach(async () => {
    vi.useRealTimers();
    await client[Symbol.asyncDispose]();
    await agent[Symbol.asyncDispose]();
  });

  it("is made a moment after somebody wants it", async () => {
    await pass(1);
    expect(agent.connections).toBe(0);
    await pass(1);
    expect(asked()).toEqual(["sandbox.events"]);
  });

  it("is made before a command that nobody follows, and what may have ended until it was there is asked for", async () => {
    await client.execs.startDetached(spec, options());
    await expectAsked("sandbox.events", "exec.start", "exec.list");
  });

  it("comes behind a first command that is followed, though it goes on", async () => {
    await client.execs.start(spec, options());
    await pass(9);
    expect(asked()).toEqual(["exec.start"]);
    await pass(1);
    await expectAsked("exec.start", "sandbox.events", "exec.list");
  });

  it("is put off once: not by the next command too", async () => {
    await client.execs.start(spec, options());
    await pass(9);
    await client.execs.start(second, options());
    await pass(1);
    await expectAsked("exec.start", "exec.start", "sandbox.events", "exec.list");
  });

  it("is made at once when that command is left", async () => {
    const view = await client.execs.start(spec, options());
    await view[Symbol.asyncDispose]();
    await expectAsked("exec.start", "sandbox.events", "exec.list");
  });

  it.each([
    ["breaks", (command?: FakeConnection) => command?.socket.destroy()],
    ["ends without telling of it", (command?: FakeConnection) => command?.end()],
  ])("is made at once when what that command is followed on %s", async (_how, end) => {
    const view = await client.execs.start(spec, options());
    end(commands[0]);
    expect(await Array.fromAsync(view.events)).toEqual([]);
    await expectAsked("exec.start", "sandbox.events", "exec.list");
  });

  it("is made no earlier because that command has ended, which its reader was told", async () => {
    const view = await client.execs.start(spec, options());
    commands[0]?.frame(frameKinds.event, exit);
    commands[0]?.end();
    expect(await Array.fromAsync(view.events)).toMatchObject([{ exit: { exitCode: 0 } }]);
    await view[Symbol.asyncDispose]();
    await pass(9);
    expect(asked()).toEqual(["exec.start"]);
    await pass(1);
    await expectAsked("exec.start", "sandbox.events", "exec.list");
  });
});
