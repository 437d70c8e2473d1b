import { once } from "node:events";
import { mkdtemp, rm } from "node:fs/promises";
import { createServer } from "node:http";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { Writable } from "node:stream";
import { pino } from "pino";
import { afterAll, beforeAll, expect, it } from "vitest";
import { sharedEngine, type TestEngine } from "../../../test/support/docker-engine.ts";
import { mustRun } from "../../../test/support/programs.ts";
import { startRegistry, type TestRegistry } from "../../../test/support/registry.ts";
import { describeWith } from "../../../test/support/requirements.ts";
import { busyboxRootfs, importImage } from "../../../test/support/tiny-images.ts";
import { silentLogger } from "../../platform/logger.ts";
import { NotFound, Unavailable } from "../../ports/index.ts";
import { usualPulls } from "../../pulls/pull-turns.ts";
import { EngineClient } from "./engine-client.ts";
import { EngineImages } from "./images.ts";

/** An engine whose pulls never end. */
async function engineThatHangs() {
  const folder = await mkdtemp(join(tmpdir(), "alcove-engine-"));
  const pulls: { over: Promise<void>; isOver: () => boolean }[] = [];
  const server = createServer((_request, response) => {
    let isOver = false;
    const over = once(response, "close").then(() => {
      isOver = true;
    });
    pulls.push({ over, isOver: () => isOver });
    server.emit("pull");
  });
  await once(server.listen(join(folder, "engine.sock")), "listening");
  const client = new EngineClient({ socket: `unix://${folder}/engine.sock` });
  return {
    client,
    /** The next pull that is asked for. */
    next: async () => {
      for (;;) {
        const pull = pulls.shift();
        if (pull !== undefined) return pull;
        await once(server, "pull", soon());
      }
    },
    async [Symbol.asyncDispose]() {
      client[Symbol.dispose]();
      server.closeAllConnections();
      await server[Symbol.asyncDispose]();
      await rm(folder, { recursive: true });
    },
  };
}

it("config() of an image that is described in more than 512 KB is a BadRequest", async () => {
  const folder = await mkdtemp(join(tmpdir(), "alcove-engine-"));
  const Labels = { much: "x".repeat(600_000) };
  await using server = createServer(
    (_request, response) => void response.end(JSON.stringify({ Id: "sha256:1", Config: { Labels } })),
  );
  await once(server.listen(join(folder, "engine.sock")), "listening");
  using engine = new EngineClient({ socket: `unix://${folder}/engine.sock` });
  const images = new EngineImages({
    engine,
    pullPolicy: "never",
    allowedRegistries: [],
    pulls: usualPulls,
    logger: silentLogger,
  });
  await expect(images.config("i:1", soon())).rejects.toMatchObject({
    code: "bad_request",
    message: expect.stringContaining("image i:1 has more than 512 KB of configuration"),
  });
  server.closeAllConnections();
  await rm(folder, { recursive: true });
});

it("config() of an image that declares more than 64 volumes is a BadRequest", async () => {
  const folder = await mkdtemp(join(tmpdir(), "alcove-engine-"));
  const Volumes = Object.fromEntries(Array.from({ length: 65 }, (_, at) => [`/v${at}`, {}]));
  await using server = createServer(
    (_request, response) => void response.end(JSON.stringify({ Id: "sha256:1", Config: { Volumes } })),
  );
  await once(server.listen(join(folder, "engine.sock")), "listening");
  using engine = new EngineClient({ socket: `unix://${folder}/engine.sock` });
  const parts = { pullPolicy: "never", allowedRegistries: [], pulls: usualPulls } as const;
  const images = new EngineImages({ engine, ...parts, logger: silentLogger });
  await expect(images.config("i:1", soon())).rejects.toMatchObject({
    code: "bad_request",
    message: "image i:1 declares 65 volumes; it may have 64: build it with fewer",
  });
  server.closeAllConnections();
  await rm(folder, { recursive: true });
});

const soon = () => ({ signal: AbortSignal.timeout(15_000) });

await describeWith(["docker", "busybox", "registry", "skopeo"], "EngineImages", () => {
  let engine: TestEngine;
  let registry: TestRegistry;
  let client: EngineClient;
  let logged = "";
  /** Nothing listens there. */
  const down = "127.0.0.1:1";
  const log = new Writable({
    write(chunk, _encoding, done) {
      logged += chunk;
      done();
    },
  });
  const open = (pullPolicy: "missing" | "never", allowedRegistries = ["*", registry.address, down]) =>
    new EngineImages({
      engine: client,
      pullPolicy,
      allowedRegistries,
      pulls: usualPulls,
      logger: pino({ level: "info" }, log),
    });

  beforeAll(async () => {
    engine = await sharedEngine();
    registry = await startRegistry();
    client = new EngineClient({ socket: engine.socket });
    await importImage(engine, (await busyboxRootfs()).tar, "alcove-test/with-config:1", [
      "ENV A=b=c",
      "USER app",
      "WORKDIR /srv",
    ]);
  });
  afterAll(async () => {
    client[Symbol.dispose]();
    await registry[Symbol.asyncDispose]();
  });

  it("config() gives ENV, USER and WORKDIR, and undefined for an image that is not there", async () => {
    const images = open("never");
    expect(await images.config("alcove-test/with-config:1", soon())).toMatchObject({
      env: { A: "b=c" },
      user: "app",
      workdir: "/srv",
    });
    expect(await images.config("alcove-test/none:1", soon())).toBeUndefined();
  });

  it("pull() gets an image from a registry, once for all who wait, and tells it in the log", async () => {
    const name = await registry.push(engine, "alcove-test/with-config:1", "tiny:1");
    const images = open("missing");
    expect(await images.config(name, soon())).toBeUndefined();
    await Promise.all([images.pull(name, soon()), images.pull(name, soon())]);
    expect(await images.config(name, soon())).toMatchObject({ user: "app" });
    expect(logged.split("\n").filter((line) => line.includes(`pulling image ${name}`))).toHaveLength(1);
    expect(logged).toMatch(new RegExp(`"event":"image.pulled".*"image":"${RegExp.escape(name)}"`));
    await mustRun("docker", ["-H", engine.socket, "rmi", name]);
  });

  it("pull() of what no registry has is NotFound with the way to get it, the same whether there is a registry or not; the log has the reason", async () => {
    const images = open("missing");
    const said = async (name: string) => {
      const failure = await images.pull(name, soon()).catch((error: unknown) => error);
      expect(failure).toBeInstanceOf(NotFound);
      return String(failure).replaceAll(name, "NAME");
    };
    const missing = await said(`${registry.address}/nothing:1`);
    expect(missing).toContain("docker pull NAME");
    expect(await said(`${down}/unreachable:1`)).toBe(missing);
    expect(logged).toMatch(/image\.pull_failed.*unreachable:1.*connection refused/);
  });

  it("pull() asks no registry inside this network that is not named, by whatever spelling", async () => {
    const images = open("missing");
    const port = registry.address.split(":")[1];
    const hosts = ["localhost", "LOCALHOST", "2130706433", "127.0.0.2"].map((host) => `${host}:${port}`);
    for (const host of [...hosts, "169.254.169.254", "[::1]:5000"])
      await expect(images.pull(`${host}/latest/meta-data:1`, soon()), host).rejects.toMatchObject({
        code: "forbidden",
        message: expect.stringContaining("images.allowed_registries must name it"),
      });
    expect(logged).not.toContain("meta-data");
  });

  it("pull() is refused by the policy never, naming the key", async () => {
    const failure = await open("never")
      .pull("alpine:3", soon())
      .catch((error: unknown) => error);
    expect(failure).toBeInstanceOf(NotFound);
    expect(String(failure)).toContain("images.pull_policy is never");
    expect(String(failure)).toContain("docker pull alpine:3");
  });

  it("pull() is refused for a registry that is not allowed, whatever it would answer", async () => {
    const images = open("missing", ["docker.io"]);
    await expect(images.pull(`${registry.address}/tiny:1`, soon())).rejects.toThrow(
      /none of images.allowed_registries \(docker.io\)/,
    );
  });

  it("pull() lets a caller leave; the last who leaves, the deadline and close() end it in the engine too", async () => {
    const images = open("missing");
    const reason = new Error("left");
    await expect(
      images.pull(`${registry.address}/nothing:2`, { signal: AbortSignal.abort(reason) }),
    ).rejects.toBe(reason);
    images.close(new Error("closing"));
    await expect(images.pull(`${registry.address}/nothing:3`, soon())).rejects.toThrow(Unavailable);

    await using hanging = await engineThatHangs();
    const openHanging = (timeoutMs: number) =>
      new EngineImages({
        engine: hanging.client,
        pullPolicy: "missing",
        allowedRegistries: ["*"],
        pulls: { most: 2, timeoutMs },
        logger: silentLogger,
      });
    const patient = openHanging(600_000);
    const [one, two] = [new AbortController(), new AbortController()];
    const gone = [one, two].map(({ signal }) =>
      patient.pull("192.0.2.1/slow:1", { signal }).catch((error: unknown) => error),
    );
    const asked = await hanging.next();
    one.abort(reason);
    expect(await gone[0]).toBe(reason);
    expect(asked.isOver()).toBe(false);
    two.abort(reason);
    expect(await gone[1]).toBe(reason);
    await asked.over;
    const late = openHanging(300).pull("192.0.2.1/slow:1", soon());
    const askedAgain = await hanging.next();
    await expect(late).rejects.toThrow(/was not pulled within 0.3 s \(images.pull_timeout\)/);
    await askedAgain.over;
  });
});
