import { once } from "node:events";
import { mkdtemp, rm } from "node:fs/promises";
import { createServer } from "node:http";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, expect, it } from "vitest";
import { orphanedContainers } from "./orphaned-containers.ts";

let folder: string;
beforeEach(async () => {
  folder = await mkdtemp(join(tmpdir(), "alcove-orphans-"));
});
afterEach(() => rm(folder, { recursive: true, force: true }));

const soon = () => AbortSignal.timeout(30_000);

it("the containers of one installation are found by its name and ended, others' are not", async () => {
  const removed: string[] = [];
  const labelled = (Id: string, instance: string) => ({
    Id,
    State: "running",
    Labels: { "alcove.instance": instance },
  });
  await using engine = createServer((request, response) => {
    const path = request.url ?? "";
    if (request.method === "DELETE") {
      removed.push(/(?:containers|volumes)\/([^?]+)/.exec(path)?.[1] ?? path);
      response.writeHead(204).end();
    } else if (path.startsWith("/volumes?")) {
      const Volumes = ["alcove-agent-0123456789ab-1", "of-alcove-agent-0123456789ab-2"];
      response.end(JSON.stringify({ Volumes: Volumes.map((Name) => ({ Name })) }));
    } else if (path.includes("/containers/json") && path.includes("alcove.instance")) {
      response.writeHead(200, { "content-type": "application/json" });
      response.end(
        JSON.stringify([labelled("one", "0123456789abcdef"), labelled("two", "fedcba9876543210")]),
      );
    } else response.writeHead(404).end("{}");
  });
  const socket = join(folder, "engine.sock");
  await once(engine.listen(socket), "listening");
  const found = await orphanedContainers("0123456789ab", { socket: `unix://${socket}`, signal: soon() });
  expect(found.ids).toEqual(["one"]);
  await found.end();
  expect(removed).toEqual(["one", "alcove-agent-0123456789ab-1"]);
  engine.closeAllConnections();
});

it("labels of 40 MB of one container hide neither it nor others", async () => {
  const list = ["one", "two"].map((Id) => ({
    Id,
    State: "running",
    Labels: { much: "x".repeat(Id === "one" ? 40_000_000 : 1), "alcove.instance": "0123456789abcdef" },
  }));
  await using engine = createServer(
    ({ url }, response) =>
      void response.end(url?.startsWith("/containers/json") ? JSON.stringify(list) : "OK"),
  );
  const socket = join(folder, "engine.sock");
  await once(engine.listen(socket), "listening");
  const found = await orphanedContainers("0123456789ab", { socket: `unix://${socket}`, signal: soon() });
  expect(found.ids).toEqual(["one", "two"]);
  engine.closeAllConnections();
});

it("there are none where no engine answers", async () => {
  const { ids } = await orphanedContainers("0123", {
    socket: `unix://${join(folder, "none.sock")}`,
    signal: soon(),
  });
  expect(ids).toEqual([]);
});

it("that there are none is not said of an engine that does not answer", async () => {
  await using engine = createServer(() => undefined);
  const socket = join(folder, "engine.sock");
  await once(engine.listen(socket), "listening");
  const patience = { pingMs: 100, callMs: 100, lookMs: 100 };
  const asked = orphanedContainers("0123", { socket: `unix://${socket}`, signal: soon(), patience });
  await expect(asked).rejects.toThrow(/has not answered/);
  engine.closeAllConnections();
});
