import { once } from "node:events";
import { mkdtemp, rm } from "node:fs/promises";
import { createServer, type ServerResponse } from "node:http";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, expect, it, vi } from "vitest";
import { silentLogger } from "../../platform/logger.ts";
import { NotFound, ProviderError } from "../../ports/index.ts";
import { usualPulls } from "../../pulls/pull-turns.ts";
import { ContainerEvents } from "./container-events.ts";
import { ContainerListReader } from "./container-list.ts";
import { Containers } from "./containers.ts";
import { EngineClient } from "./engine-client.ts";
import { EngineImages } from "./images.ts";

const mebibyte = 1_048_576;
/** What is sent before it counts as read without end; more than is on its way between two processes. */
const enough = 64 * mebibyte;
const soon = () => ({ signal: AbortSignal.timeout(20_000) });

const opened: AsyncDisposable[] = [];
afterEach(async () => {
  for (const one of opened.splice(0).reverse()) await one[Symbol.asyncDispose]();
});

/** An engine that answers everything with `piece` for ever. @returns how much of each answer it was rid of, once that was broken off. */
async function endlessEngine(piece: Buffer) {
  const folder = await mkdtemp(join(tmpdir(), "alcove-endless-"));
  const brokenOff: Promise<number>[] = [];
  const server = createServer((request, response) => {
    request.resume();
    brokenOff.push(sent(response, piece));
    server.emit("asked");
  });
  await once(server.listen(join(folder, "engine.sock")), "listening");
  const engine = new EngineClient({ socket: `unix://${folder}/engine.sock` });
  opened.push({
    async [Symbol.asyncDispose]() {
      engine[Symbol.dispose]();
      server.closeAllConnections();
      await server[Symbol.asyncDispose]();
      await rm(folder, { recursive: true });
    },
  });
  const first = async () => {
    if (brokenOff.length === 0) await once(server, "asked", soon());
    return brokenOff[0];
  };
  return { engine, first };
}

async function sent(response: ServerResponse, piece: Buffer): Promise<number> {
  let bytes = 0;
  const closed = once(response, "close");
  while (!response.destroyed && bytes < enough) {
    bytes += piece.length;
    if (!response.write(piece)) await Promise.race([once(response, "drain"), closed]);
  }
  response.destroy();
  return bytes;
}

it("a pull whose progress is one line without end is broken off, and the image is not there", async () => {
  const { engine, first } = await endlessEngine(Buffer.alloc(mebibyte, " "));
  const parts = { pullPolicy: "missing" as const, allowedRegistries: ["*"], pulls: usualPulls };
  const images = new EngineImages({ engine, ...parts, logger: silentLogger });
  await expect(images.pull("registry.invalid/thing:1", soon())).rejects.toThrow(NotFound);
  expect(await first()).toBeLessThan(enough);
});

it("an event that is one line without end is broken off, and the stream is asked for again", async () => {
  const { engine, first } = await endlessEngine(Buffer.alloc(mebibyte, " "));
  const onReconnected = vi.fn();
  const calls = { onDied: () => undefined, onReconnected };
  using events = new ContainerEvents({ engine, instanceId: "one", logger: silentLogger, ...calls });
  events.start();
  expect(await first()).toBeLessThan(enough);
  await expect.poll(() => onReconnected.mock.calls.length, { timeout: 5_000 }).toBeGreaterThan(0);
});

it("a container's log without end is broken off, in whatever pieces it comes", async () => {
  const frame = Buffer.concat([Buffer.from([1, 0, 0, 0, 0, 0, 0, 64]), Buffer.alloc(64, "x")]);
  const { engine, first } = await endlessEngine(Buffer.concat(Array(10_000).fill(frame)));
  const containers = new Containers({ engine });
  await expect(containers.logs("c", { lines: 10, ...soon() })).rejects.toThrow(ProviderError);
  expect(await first()).toBeLessThan(enough);
});

it("a list of containers is none once what is kept of it is more than believable", () => {
  const reader = new ContainerListReader();
  const labels = Array.from({ length: 1_000 }, (_, index) => `"alcove.${index}":"${"x".repeat(1_000)}"`);
  const some = Buffer.from(`{"Id":"a","State":"running","Labels":{${labels.join()}}},`);
  reader.push(Buffer.from("["));
  const readOn = () => {
    for (let round = 0; round < 200; round += 1) reader.push(some);
  };
  expect(readOn).toThrow(/cannot be read: what is to be kept of it/);
});
