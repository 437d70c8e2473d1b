import { once } from "node:events";
import { mkdtemp, rm } from "node:fs/promises";
import { createServer } from "node:http";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { expect, it } from "vitest";
import { FairLanes } from "../../platform/fair-lanes.ts";
import { silentLogger } from "../../platform/logger.ts";
import type { RuntimeSpec } from "../../ports/index.ts";
import { usualPulls } from "../../pulls/pull-turns.ts";
import { ContainerMaker, type ContainerMakerParts } from "./container-maker.ts";
import { Containers } from "./containers.ts";
import { EngineClient } from "./engine-client.ts";
import { EngineImages } from "./images.ts";

const soon = () => ({ signal: AbortSignal.timeout(15_000) });

/** An engine with an image that is more than one may be, there or to be pulled. @returns what it was asked for. */
async function askedToCreate({ isThere }: { isThere: boolean }): Promise<string[]> {
  const folder = await mkdtemp(join(tmpdir(), "alcove-engine-"));
  const asked: string[] = [];
  let present = isThere;
  await using server = createServer((request, response) => {
    const call = `${request.method} ${new URL(request.url ?? "", "http://engine").pathname}`;
    asked.push(call);
    request.resume();
    if (call === "POST /images/create") present = true;
    const [status, body] = /^GET \/images/.test(call)
      ? present
        ? [200, { Id: "sha256:1", Config: { Labels: { much: "x".repeat(100_000) } } }]
        : [404, { message: "no such image" }]
      : call === "POST /containers/create"
        ? present
          ? [201, { Id: "c" }]
          : [404, { message: "no such image" }]
        : [200, {}];
    response.writeHead(status as number).end(JSON.stringify(body));
  });
  await once(server.listen(join(folder, "engine.sock")), "listening");
  using engine = new EngineClient({ socket: `unix://${folder}/engine.sock` });
  const images = new EngineImages({
    engine,
    pullPolicy: "missing",
    allowedRegistries: ["*"],
    pulls: usualPulls,
    logger: silentLogger,
  });
  const maker = new (class extends ContainerMaker {
    override order() {
      return {};
    }
  })({
    engine,
    images,
    containers: new Containers({ engine }),
    delivery: { prepare: async () => ({ mounts: [], tmpfs: {} }) },
    disk: { storageOptions: () => undefined, taken: () => undefined, refused: () => false },
    lanes: new FairLanes(8),
    instanceId: "i",
    processors: 1,
    onGvisor: false,
    logger: silentLogger,
    closing: new AbortController().signal,
  } as unknown as ContainerMakerParts);
  const spec = {
    runtimeId: "rt-1",
    sandboxId: "sb-1",
    memoryMb: 64,
    vcpus: 1,
    env: {},
  } as unknown as RuntimeSpec;
  const creating = maker.create(spec, {
    container: "c",
    image: "registry.invalid/i:1",
    pulls: true,
    ...soon(),
  });
  await expect(creating).rejects.toMatchObject({ code: "bad_request" });
  server.closeAllConnections();
  await rm(folder, { recursive: true });
  return asked;
}

// The engine makes a volume for each that an image declares, and hundreds of thousands are a gigabyte of its disk.
it.each([{ isThere: true }, { isThere: false }])(
  "create() of an image that is refused asks the engine for no container: $isThere",
  async (image) => {
    expect(await askedToCreate(image)).not.toContain("POST /containers/create");
  },
);
