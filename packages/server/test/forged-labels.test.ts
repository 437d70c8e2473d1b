import { once } from "node:events";
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import { Harness } from "../src/core/testing/harness.ts";
import { ScriptedProvider } from "../src/core/testing/scripted-provider.ts";
import { silentLogger } from "../src/platform/logger.ts";
import { randomIds } from "../src/platform/random-ids.ts";
import { systemClock } from "../src/platform/system-clock.ts";
import type { SandboxId } from "../src/ports/index.ts";
import { CustomProvider } from "../src/providers/custom/index.ts";
import { SqliteStore } from "../src/stores/sqlite/index.ts";

type Labels = Record<string, string>;
interface Written {
  image: string;
  createdAt: string;
  sandbox: { ownerId: string; birth: { run: string; number: number }; [field: string]: unknown };
}

/** A backend of provider `custom` that somebody took over: it lists what the test says, and runs nothing. */
async function takenOver() {
  const sandboxes = new Map<string, Labels>();
  const of = (id: string) => ({ id, image: "any", labels: sandboxes.get(id), state: "running" });
  const server = createServer(async (request, response) => {
    const [, , id] = (request.url ?? "").split("?")[0]?.split("/") ?? [];
    let body = "";
    for await (const part of request) body += String(part);
    if (request.url === "/health")
      return response.end(JSON.stringify({ status: "ok", capabilities: ["files"] }));
    if (request.method === "POST" && id === undefined) {
      const made = JSON.parse(body) as { id: string; labels: Labels };
      sandboxes.set(made.id, made.labels);
      return response.end(JSON.stringify(of(made.id)));
    }
    if (id === undefined) return response.end(JSON.stringify({ sandboxes: [...sandboxes.keys()].map(of) }));
    const known = request.method === "DELETE" ? sandboxes.delete(id) : sandboxes.has(id);
    return response.writeHead(known ? 200 : 404).end(JSON.stringify(of(id)));
  });
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  const { port } = server.address() as AddressInfo;
  return { sandboxes, server, url: `http://127.0.0.1:${port}` };
}

describe("labels that a backend has forged", () => {
  let store: SqliteStore;
  let backend: Awaited<ReturnType<typeof takenOver>>;
  let h: Harness<typeof systemClock>;
  let custom: CustomProvider;
  let real: Labels;
  let found: string[];
  beforeEach(async () => {
    found = [];
    backend = await takenOver();
    store = await SqliteStore.open({ path: ":memory:" });
    custom = openCustom();
    let recovering = false;
    const recovery = {
      get recovering() {
        return recovering;
      },
      outlived: async () => {
        found.push("an older database");
        recovering = true;
      },
      recovered: async () => {
        recovering = false;
      },
    };
    const options = { store, clock: systemClock, provider: new ScriptedProvider(), more: [custom], recovery };
    h = await new Harness(options).start();
    await h.spawn({ provider: "custom", image: "any", ownerId: "ada" });
    [real] = [...backend.sandboxes.values()] as [Labels];
  });
  afterEach(async () => {
    await h[Symbol.asyncDispose]();
    await custom[Symbol.asyncDispose]();
    await store[Symbol.asyncDispose]();
    backend.server.closeAllConnections();
    backend.server.close();
  });

  function openCustom(): CustomProvider {
    return new CustomProvider({
      config: {
        defaultImage: "any",
        url: backend.url,
        apiKey: "key-of-the-backend",
        authHeader: "bearer",
        networkMode: "none",
        timeoutMs: 5_000,
      },
      instanceId: "one",
      clock: systemClock,
      logger: silentLogger,
    });
  }

  /** One more than there is, as the real one but for what is changed. */
  function list(change: (note: Written, labels: Labels) => void): { id: string; sandboxId: SandboxId } {
    const id = randomIds.runtimeId();
    const sandboxId = randomIds.sandboxId();
    const labels: Labels = { ...real, "alcove.runtime": id, "alcove.sandbox": sandboxId };
    const note = JSON.parse(real["alcove.note"] ?? "") as Written;
    change(note, labels);
    labels["alcove.note"] = JSON.stringify(note);
    backend.sandboxes.set(id, labels);
    return { id, sandboxId };
  }
  const ended = (id: string) => !backend.sandboxes.has(id);

  it("leave spawns on every provider as they are, whatever number of this run they name", async () => {
    for (const number of [Number.MAX_SAFE_INTEGER, 2 ** 40, 1_000]) {
      const { id, sandboxId } = list((note) => {
        note.sandbox.birth.number = number;
      });
      await h.reconciler.reconcile();
      expect(await store.sandboxes.get(sandboxId)).toBeUndefined();
      expect((await h.spawn()).state).toBe("running");
      expect(ended(id)).toBe(true);
    }
    expect(found).toEqual([]);
  });

  it("are no reason to take the database for an older one where no request could have asked for that", async () => {
    const another = (note: Written) => {
      note.sandbox.birth = { run: "0123456789abcdef", number: 1 };
    };
    const forged: Parameters<typeof list>[0][] = [
      (note) => Object.assign(note.sandbox, { expiresAt: "9999-99-99" }),
      (note) => Object.assign(note, { createdAt: "yesterday" }),
      (note) => Object.assign(note.sandbox, { ownerId: "../ada" }),
      (note) => Object.assign(note.sandbox, { name: "<b>" }),
      (note) => Object.assign(note.sandbox, { memoryMb: -1_000_000 }),
      (note) => Object.assign(note.sandbox, { birth: { run: "x".repeat(10_000), number: 1 } }),
      (_note, labels) => Object.assign(labels, { "alcove.sandbox": "../../evil<b>" }),
    ];
    for (const change of forged) {
      const { id } = list((note, labels) => {
        another(note);
        change(note, labels);
      });
      await h.reconciler.reconcile();
      await h.reconciler.reconcile();
      expect([id, ended(id)]).toEqual([id, true]);
    }
    expect(await store.sandboxes.listLive()).toHaveLength(1);
    expect(found).toEqual([]);
  });
});
