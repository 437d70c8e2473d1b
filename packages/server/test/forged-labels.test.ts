import { createHmac } from "node:crypto";
import { once } from "node:events";
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import { Harness } from "../src/core/testing/harness.ts";
import { ScriptedProvider } from "../src/core/testing/scripted-provider.ts";
import { silentLogger } from "../src/platform/logger.ts";
import { randomIds } from "../src/platform/random-ids.ts";
import { systemClock } from "../src/platform/system-clock.ts";
import type { RuntimeId, SandboxId, SandboxNote } from "../src/ports/index.ts";
import { CustomProvider } from "../src/providers/custom/index.ts";
import { SqliteStore } from "../src/stores/sqlite/index.ts";

type Labels = Record<string, string>;
interface Written {
  image: string;
  createdAt: string;
  sandbox: { ownerId: string; birth: { run: string; number: number }; [field: string]: unknown };
}

const noteKey = Buffer.alloc(32, "key");

/** As the installation signs, for what has to hold whoever signed. */
function sign(labels: Labels): void {
  const signed = ["installation", "runtime", "sandbox", "note"].map((name) => labels[`alcove.${name}`]);
  const signature = createHmac("sha256", noteKey).update(JSON.stringify(signed)).digest("base64url");
  labels["alcove.signature"] = signature;
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
  let real: Labels;
  let found: string[];
  let open: AsyncDisposableStack;
  beforeEach(async () => {
    found = [];
    open = new AsyncDisposableStack();
    backend = await takenOver();
    open.defer(() => {
      backend.server.closeAllConnections();
      backend.server.close();
    });
    await start();
    await h.spawn({ provider: "custom", image: "any", ownerId: "ada", name: "dev" });
    [real] = [...backend.sandboxes.values()] as [Labels];
  });
  afterEach(() => open[Symbol.asyncDispose]());

  /** A process with an empty database, in place of the one that runs. */
  async function start({ lost = false, elsewhere = new ScriptedProvider() } = {}): Promise<void> {
    found = [];
    store = open.use(await SqliteStore.open({ path: ":memory:" }));
    const custom = open.use(openCustom());
    let recovering = lost;
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
    const options = { store, clock: systemClock, provider: elsewhere, more: [custom], recovery };
    h = await open.use(new Harness(options)).start();
  }

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
      noteKey,
      clock: systemClock,
      logger: silentLogger,
    });
  }

  /** One more than there is, as the real one but for what is changed. */
  function list(
    change: (note: Written, labels: Labels) => void,
    { signed = false } = {},
  ): { id: string; sandboxId: SandboxId } {
    const id = randomIds.runtimeId();
    const sandboxId = randomIds.sandboxId();
    const labels: Labels = { ...real, "alcove.runtime": id, "alcove.sandbox": sandboxId };
    const note = JSON.parse(real["alcove.note"] ?? "") as Written;
    change(note, labels);
    labels["alcove.note"] = JSON.stringify(note);
    if (signed) sign(labels);
    backend.sandboxes.set(id, labels);
    return { id, sandboxId };
  }
  const ended = (id: string) => !backend.sandboxes.has(id);
  const takenIn = async (id: string) =>
    (await store.sandboxes.listLive()).find(({ runtimeId }) => runtimeId === id);

  it("leave spawns on every provider as they are, whatever number of this run they name", async () => {
    for (const number of [Number.MAX_SAFE_INTEGER, 2 ** 40, 1_000]) {
      const { id, sandboxId } = list(
        (note) => {
          note.sandbox.birth.number = number;
        },
        { signed: true },
      );
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
      const { id } = list(
        (note, labels) => {
          another(note);
          change(note, labels);
        },
        { signed: true },
      );
      await h.reconciler.reconcile();
      await h.reconciler.reconcile();
      expect([id, ended(id)]).toEqual([id, true]);
    }
    expect(await store.sandboxes.listLive()).toHaveLength(1);
    expect(found).toEqual([]);
  });

  it("give nobody a sandbox, and are no reason to take the database for an older one", async () => {
    const forged: Parameters<typeof list>[0][] = [
      (note) => Object.assign(note.sandbox, { ownerId: "victim" }),
      () => undefined,
      (_note, labels) => Object.assign(labels, { "alcove.signature": undefined }),
      (_note, labels) => Object.assign(labels, { "alcove.signature": "x".repeat(43) }),
    ];
    for (const change of forged) {
      const { id } = list((note, labels) => {
        note.sandbox.birth = { run: "0123456789abcdef", number: 1 };
        change(note, labels);
      });
      await h.reconciler.reconcile();
      expect([id, ended(id)]).toEqual([id, true]);
    }
    // The real one's note, word for word, of a runtime that was made up.
    const id = randomIds.runtimeId();
    backend.sandboxes.set(id, { ...real, "alcove.runtime": id, "alcove.sandbox": randomIds.sandboxId() });
    await h.reconciler.reconcile();
    expect(ended(id)).toBe(true);
    expect(await store.sandboxes.named("victim", "dev")).toBeUndefined();
    expect(await store.sandboxes.listLive()).toHaveLength(1);
    expect(found).toEqual([]);
  });

  it("are nobody's sandbox where the database was lost, and the real one is its owner's again", async () => {
    const { id, sandboxId } = list((note) => {
      note.sandbox.ownerId = "victim";
      note.sandbox.metadata = { of: "the forger" };
    });
    await h[Symbol.asyncDispose]();
    await start({ lost: true });
    expect(await takenIn(id)).toMatchObject({ ownerId: "", name: null, metadata: {} });
    expect(await store.sandboxes.get(sandboxId)).toBeUndefined();
    expect(await store.sandboxes.named("victim", "dev")).toBeUndefined();
    const own = await store.sandboxes.named("ada", "dev");
    expect(own).toMatchObject({ id: real["alcove.sandbox"], image: "any", state: "running" });
  });

  it("take no sandbox's place where the database was lost, whatever id they name and whoever is heard first", async () => {
    const elsewhere = new ScriptedProvider();
    const [runtimeId, sandboxId] = [randomIds.runtimeId(), randomIds.sandboxId()];
    const note = { ownerId: "ada" } as unknown as SandboxNote;
    elsewhere.backend.runtimes.set(runtimeId, { sandboxId, state: "running", expiresInMs: null, note });
    const { id } = list((_note, labels) => Object.assign(labels, { "alcove.sandbox": sandboxId }));
    await h[Symbol.asyncDispose]();
    const heard = Promise.withResolvers<void>();
    elsewhere.hook = (step) => (step === "inventory" ? heard.promise : undefined);
    const started = start({ lost: true, elsewhere });
    await expect.poll(() => store.sandboxes.named("ada", "dev")).toBeDefined();
    await expect.poll(() => takenIn(id)).toMatchObject({ ownerId: "" });
    heard.resolve();
    await started;
    await h.reconciler.reconcile();
    expect(await store.sandboxes.get(sandboxId)).toMatchObject({
      ownerId: "ada",
      runtimeId,
      state: "running",
    });
    expect(elsewhere.backend.runtimes.has(runtimeId)).toBe(true);
  });

  it("that an earlier release did not sign are believed to run, once a signed one tells that the database is older", async () => {
    const [signedId] = [...backend.sandboxes.keys()] as [string];
    // Listed before the one that can tell.
    backend.sandboxes.delete(signedId);
    const { id } = list((_note, labels) => Object.assign(labels, { "alcove.signature": undefined }));
    backend.sandboxes.set(signedId, real);
    await h[Symbol.asyncDispose]();
    await start();
    expect(found).toEqual(["an older database"]);
    expect(await takenIn(id)).toMatchObject({ ownerId: "", name: null, state: "running" });
    expect(await store.sandboxes.named("ada", "dev")).toMatchObject({ state: "running" });
  });

  it("that an earlier release did not sign do for a sandbox that the database knows", async () => {
    const [id] = [...backend.sandboxes.keys()] as [string];
    const { "alcove.signature": _signature, ...unsigned } = real;
    backend.sandboxes.set(id, unsigned);
    const custom = open.use(openCustom());
    const soon = { signal: AbortSignal.timeout(5_000) };
    const [entry] = await custom.inventory(soon);
    expect(entry).toMatchObject({ runtimeId: id, state: "running" });
    await custom.adopt(id as RuntimeId, soon);
    await h.reconciler.reconcile();
    expect(await store.sandboxes.named("ada", "dev")).toMatchObject({ state: "running" });
    expect(ended(id)).toBe(false);
  });
});
