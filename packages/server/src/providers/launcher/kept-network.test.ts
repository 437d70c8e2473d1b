import { spawn } from "node:child_process";
import { once } from "node:events";
import { mkdtemp, rm } from "node:fs/promises";
import { createServer, type Socket } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { setTimeout as delay } from "node:timers/promises";
import { afterEach, beforeEach, expect, it, onTestFinished, vi } from "vitest";
import type { NetworkChange } from "../../ports/index.ts";
import { KeptNetwork } from "./kept-network.ts";

let folder: string;
beforeEach(async () => {
  folder = await mkdtemp(join(tmpdir(), "alcove-kept-"));
});
afterEach(() => rm(folder, { recursive: true, force: true }));

/** A relay that is up at once, and one that watches it. @param ended what is known of its sandbox. */
async function watched(
  ended: () => Promise<boolean>,
  listen: (change: NetworkChange) => void = () => undefined,
) {
  const path = join(folder, "network.sock");
  const relays: Socket[] = [];
  const server = createServer((socket) => {
    relays.push(socket);
    socket.write('{"state":"up"}\n');
  });
  await once(server.listen(path), "listening");
  const told: NetworkChange[] = [];
  const attach = vi.fn(async () => undefined);
  const network = new KeptNetwork({
    path: async () => path,
    attach,
    ended,
    onChange: (one) => {
      told.push(one);
      listen(one);
    },
  });
  await network.up;
  return {
    told,
    network,
    attach,
    /** Every relay there is. */
    ends: () => {
      for (const relay of relays.splice(0)) relay.end('{"state":"lost","reason":"slirp4netns ended"}\n');
    },
    async [Symbol.asyncDispose]() {
      await network.close();
      for (const relay of relays) relay.destroy();
      await server[Symbol.asyncDispose]();
    },
  };
}

it("tells a loss, and that the network was had again, in this order", async () => {
  await using one = await watched(async () => false);
  one.ends();
  await vi.waitFor(() => expect(one.told).toHaveLength(2), { timeout: 5_000 });
  expect(one.told).toEqual([
    { state: "lost", reason: "slirp4netns ended" },
    { state: "restored", afterMs: expect.any(Number) },
  ]);
});

it("tells what comes after a change that a listener failed at", async () => {
  await using one = await watched(
    async () => false,
    () => {
      throw new Error("the listener failed");
    },
  );
  one.ends();
  await vi.waitFor(() => expect(one.told).toHaveLength(2), { timeout: 5_000 });
});

it("tells nothing of a network that ended with its sandbox, seen a moment later", async () => {
  const looks = vi.fn(async () => looks.mock.calls.length > 1);
  await using one = await watched(looks);
  one.ends();
  await vi.waitFor(() => expect(looks).toHaveBeenCalledTimes(2), { timeout: 5_000 });
  await one.network.close();
  expect(one.told).toEqual([]);
});

it("tells a loss where nothing is known of the sandbox, and nothing once it is closed", async () => {
  {
    await using one = await watched(() => Promise.reject(new Error("no /proc")));
    one.ends();
    await vi.waitFor(() => expect(one.told[0]).toMatchObject({ state: "lost" }), { timeout: 5_000 });
  }
  const looked = Promise.withResolvers<void>();
  await using one = await watched(async () => {
    looked.resolve();
    return false;
  });
  one.ends();
  await looked.promise;
  await one.network.close();
  await new Promise((resolve) => setTimeout(resolve, 400));
  expect(one.told).toEqual([]);
});

it("a process without descriptors tells no loss, starts no other relay, and looks again", async () => {
  const path = join(folder, "network.sock");
  const server = createServer((socket) => socket.write('{"state":"up"}\n'));
  await once(server.listen(path), "listening");
  const told: NetworkChange[] = [];
  const attach = vi.fn(async () => undefined);
  const connected = once(server, "connection");
  const looks = vi.fn(async () => {
    if (looks.mock.calls.length > 2) return path;
    throw Object.assign(new Error("connect EMFILE network.sock"), { code: "EMFILE" });
  });
  const network = new KeptNetwork({
    path: looks,
    attach,
    ended: async () => false,
    onChange: (one) => told.push(one),
  });
  await expect(network.up).rejects.toThrow(
    /cannot be looked at \(connect EMFILE network.sock\): .*LimitNOFILE=/,
  );
  const [relay] = (await connected) as [Socket];
  expect(looks).toHaveBeenCalledTimes(3);
  expect(attach).not.toHaveBeenCalled();
  expect(told).toEqual([]);
  await network.close();
  relay.destroy();
  await server[Symbol.asyncDispose]();
});

it("survives a relay that is killed before it has taken the connection", async () => {
  const path = join(folder, "network.sock");
  const listening = `require("node:net").createServer().listen(${JSON.stringify(path)}, () => console.log("there"))`;
  const relay = spawn(process.execPath, ["-e", listening], { stdio: ["ignore", "pipe", "inherit"] });
  onTestFinished(() => void relay.kill("SIGKILL"));
  await once(relay.stdout, "data");
  relay.kill("SIGSTOP");
  const told: NetworkChange[] = [];
  const network = new KeptNetwork({
    path: async () => path,
    attach: () => new Promise(() => undefined),
    ended: async () => false,
    onChange: (change) => told.push(change),
  });
  // The kernel connects it, and the relay does not know yet.
  await delay(200);
  relay.kill("SIGKILL");
  await expect(network.up).rejects.toThrow("its relay ended");
  await vi.waitFor(() => expect(told).toEqual([{ state: "lost", reason: "its relay ended" }]), {
    timeout: 5_000,
  });
});
