import { once } from "node:events";
import { mkdtemp, rm } from "node:fs/promises";
import { createServer } from "node:http";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { afterEach, expect, it } from "vitest";
import { dockerConfig } from "../../../test/support/docker-provider.ts";
import { silentLogger } from "../../platform/logger.ts";
import { randomIds } from "../../platform/random-ids.ts";
import { systemClock } from "../../platform/system-clock.ts";
import { type RuntimeSpec, Unavailable } from "../../ports/index.ts";
import { DockerProvider } from "./docker-provider.ts";

const info = { ServerVersion: "1", OSType: "linux", Runtimes: { runc: {} }, DefaultRuntime: "runc" };
const image = { Id: "sha256:1", Config: {} };
/** Far below what a test may take, far above what the fake engine needs. */
const patience = { pingMs: 150, callMs: 300, lookMs: 50 };
const longEnough = () => ({ signal: AbortSignal.timeout(10_000) });

const opened: AsyncDisposable[] = [];
afterEach(async () => {
  for (const one of opened.splice(0).reverse()) await one[Symbol.asyncDispose]();
});

/** An engine that takes every call, and a provider on it. @param answers to calls as `METHOD /path`; the others it leaves unanswered. */
async function engineThatAnswers(answers: (call: string) => unknown) {
  const dataDir = await mkdtemp(join(tmpdir(), "alcove-standing-"));
  const asked: string[] = [];
  const server = createServer(async (request, response) => {
    const call = `${request.method} ${request.url?.split("?")[0]}`;
    asked.push(call);
    const answer = await answers(call);
    if (answer !== undefined) response.end(JSON.stringify(answer));
  });
  await once(server.listen(join(dataDir, "engine.sock")), "listening");
  const provider = new DockerProvider({
    config: dockerConfig({ socket: `unix://${dataDir}/engine.sock` }, { minFreeMb: 0, diskMb: 0 }),
    dataDir,
    instanceId: "standing",
    // Never run here.
    agentBinary: fileURLToPath(import.meta.url),
    launcherBinary: "",
    pullPolicy: "never",
    logger: silentLogger,
    clock: systemClock,
    patience,
  });
  opened.push({
    async [Symbol.asyncDispose]() {
      await provider[Symbol.asyncDispose]();
      server.closeAllConnections();
      await server[Symbol.asyncDispose]();
      await rm(dataDir, { recursive: true, force: true });
    },
  });
  return { provider, asked };
}

function spec(): RuntimeSpec {
  const ids = { runtimeId: randomIds.runtimeId(), sandboxId: randomIds.sandboxId() };
  return { ...ids, image: "i:1", memoryMb: 64, vcpus: 1, env: {}, expiresInMs: null, metadata: {} };
}

const working = (call: string) => {
  if (call === "GET /info") return info;
  if (call.startsWith("GET /images/")) return image;
  return call === "GET /_ping" ? {} : undefined;
};

it("a spawn that meets an engine which stands still is Unavailable soon, and known to have left nothing", async () => {
  const { provider, asked } = await engineThatAnswers(() => undefined);
  const wanted = spec();
  await expect(provider.spawn(wanted, longEnough())).rejects.toMatchObject({
    code: "unavailable",
    message: expect.stringContaining("has not answered within 0.15 s"),
    retryAfterS: 5,
  });
  expect(asked).toEqual(["GET /_ping"]);
  await provider.destroy(wanted.runtimeId, longEnough());
  expect(asked).toEqual(["GET /_ping"]);
  // A runtime that may be there has to be asked for.
  await expect(provider.destroy(spec().runtimeId, longEnough())).rejects.toThrow(Unavailable);
});

it("a spawn that is given up takes nothing from another that asks the engine the same", async () => {
  const held = Promise.withResolvers<void>();
  const { provider, asked } = await engineThatAnswers((call) => {
    if (call === "GET /info") return held.promise.then(() => info);
    return asked.includes("POST /containers/create") ? undefined : working(call);
  });
  const leaving = new AbortController();
  const first = provider.spawn(spec(), leaving);
  const second = provider.spawn(spec(), longEnough());
  await expect.poll(() => asked).toContain("GET /info");
  leaving.abort(new Error("given up"));
  await expect(first).rejects.toThrow("given up");
  held.resolve();
  await expect(second).rejects.toThrow(/has not answered within/);
  expect(asked).toContain("POST /containers/create");
});

it("a spawn whose engine stands still while it creates is Unavailable soon, and not known to be gone", async () => {
  let stands = false;
  const { provider } = await engineThatAnswers((call) => {
    stands ||= call === "POST /containers/create";
    return stands && !call.startsWith("GET /images/") ? undefined : working(call);
  });
  const wanted = spec();
  await expect(provider.spawn(wanted, longEnough())).rejects.toThrow(/has not answered within 0.15 s/);
  await expect(provider.destroy(wanted.runtimeId, longEnough())).rejects.toThrow(Unavailable);
});

it("a question that an engine leaves unanswered has a deadline, though it answers others", async () => {
  const { provider } = await engineThatAnswers((call) =>
    call.startsWith("GET /images/")
      ? undefined
      : call === "POST /containers/create"
        ? { Id: "c" }
        : working(call),
  );
  await expect(provider.spawn(spec(), longEnough())).rejects.toThrow(/has not answered within 0.3 s/);
  await expect(provider.inventory(longEnough())).rejects.toThrow(/has not answered within 0.3 s/);
});

it("a stop leaves what an engine that answers nobody has half made to the next start", async () => {
  const creating = Promise.withResolvers<void>();
  const { provider } = await engineThatAnswers((call) => {
    if (call === "POST /containers/create") creating.resolve();
    return working(call);
  });
  const spawned = provider.spawn(spec(), longEnough()).catch((error: unknown) => error);
  await creating.promise;
  const startedMs = performance.now();
  await provider[Symbol.asyncDispose]();
  expect(performance.now() - startedMs).toBeLessThan(4_000);
  expect(await spawned).toBeInstanceOf(Error);
});
