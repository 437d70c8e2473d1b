import { hash } from "node:crypto";
import { setImmediate } from "node:timers/promises";
import { expect, test, vi } from "vitest";
import type { KeyRow, KeyStore } from "../../ports/key-store.ts";
import { FakeClock } from "../testing/fake-clock.ts";
import { RecordingSink } from "../testing/harness.ts";
import { type ConfiguredKey, type ConfiguredKeys, KeyRing } from "./key-ring.ts";

const sha256 = (key: string) => hash("sha256", key, "hex");
const configured: ConfiguredKeys = {
  apiKey: "client",
  adminApiKey: "admin",
  adminFallbackEnabled: true,
  keys: [],
};
const entry = (name: string, key: string, changed: Partial<ConfiguredKey> = {}): ConfiguredKey => ({
  name,
  hash: sha256(key),
  ownerId: "",
  scopes: ["read"],
  expiresAt: null,
  ...changed,
});

class MemoryKeys implements KeyStore {
  readonly rows = new Map<string, KeyRow>();
  broken = false;
  async create(row: KeyRow) {
    this.#look();
    if (this.rows.has(row.name)) return false;
    this.rows.set(row.name, row);
    return true;
  }
  async list() {
    return [...this.rows.values()];
  }
  async remove(name: string) {
    this.#look();
    return this.rows.delete(name);
  }
  async used(uses: readonly { name: string; at: Date }[]) {
    this.#look();
    for (const { name, at } of uses) {
      const row = this.rows.get(name);
      if (row !== undefined) this.rows.set(name, { ...row, lastUsedAt: at });
    }
  }
  #look() {
    if (this.broken) throw new Error("read-only");
  }
}

async function open(keys: Partial<ConfiguredKeys> = {}, store = new MemoryKeys()) {
  const clock = new FakeClock();
  const warn = vi.fn();
  const info = vi.fn();
  const events = new RecordingSink();
  const ring = await KeyRing.open({
    store,
    clock,
    logger: { info, warn },
    events,
    configured: { ...configured, ...keys },
  });
  return { ring, clock, store, warn, info, events };
}

test("the client key may not administer beside an admin key, and may without one unless told otherwise", async () => {
  const scopes = (ring: KeyRing, key: string) => [...(ring.principalOf(key)?.scopes ?? [])];
  const { ring } = await open();
  expect(scopes(ring, "client")).toEqual(["read", "write"]);
  expect(scopes(ring, "admin")).toEqual(["read", "write", "admin"]);
  expect(ring.principalOf("other")).toBeUndefined();
  expect(ring.principalOf("")).toBeUndefined();
  const alone = await open({ adminApiKey: "" });
  expect(scopes(alone.ring, "client")).toEqual(["read", "write", "admin"]);
  const nobody = await open({ adminApiKey: "", adminFallbackEnabled: false });
  expect(scopes(nobody.ring, "client")).toEqual(["read", "write"]);
});

test("a key that is given twice is the one that may do more", async () => {
  const { ring } = await open({ adminApiKey: "client", keys: [entry("ci", "client")] });
  expect(ring.principalOf("client")?.name).toBe("admin_api_key");
});

test("a key is told once, kept as a hash, and accepted after a restart", async () => {
  const { ring, store } = await open();
  const { key, view } = await ring.create({ name: "ci", ownerId: "acme", ttlMs: 3_600_000 }, "boss");
  expect(key).toMatch(/^alcove_[\w-]{43}$/);
  expect(view).toMatchObject({ name: "ci", ownerId: "acme", scopes: ["read", "write"], lastUsedAt: null });
  expect(JSON.stringify([...store.rows, ring.list()])).not.toContain(key);
  const { ring: restarted } = await open({}, store);
  expect(restarted.principalOf(key)).toMatchObject({ name: "ci", ownerId: "acme" });
});

test.each([
  [{ name: "" }, /name "" must be/],
  [{ name: "a b" }, /name "a b" must be/],
  [{ name: "x".repeat(129) }, /must be 1 to 128/],
  [{ name: "api_key" }, /stands for something else/],
  [{ name: "anonymous" }, /stands for something else/],
  [{ name: "taken" }, /exists already/],
  [{ name: "a", ownerId: "a b" }, /whitespace/],
  [{ name: "a", ownerId: "" }, /owner_id is empty/],
  [{ name: "a", ownerId: " " }, /owner_id is empty/],
  [{ name: "a", scopes: [] }, /scopes is empty/],
  [{ name: "a", ownerId: "acme", scopes: ["admin" as const] }, /cannot administer/],
])("%j is refused, and nothing is made", async (input, message) => {
  const { ring, store } = await open({ keys: [entry("taken", "k")] });
  await expect(ring.create(input, "boss")).rejects.toThrow(message);
  expect(store.rows.size).toBe(0);
});

test("of two that are made with one name at once, one is", async () => {
  const { ring } = await open();
  const made = await Promise.allSettled([
    ring.create({ name: "ci" }, "boss"),
    ring.create({ name: "ci" }, "boss"),
  ]);
  expect(made.map(({ status }) => status).sort()).toEqual(["fulfilled", "rejected"]);
});

test("a key that is revoked while it is being made is not accepted, now or after a restart", async () => {
  const store = new MemoryKeys();
  const written = Promise.withResolvers<void>();
  const create = store.create.bind(store);
  store.create = async (row) => {
    const done = await create(row);
    await written.promise;
    return done;
  };
  const { ring } = await open({}, store);
  const making = ring.create({ name: "ci" }, "boss");
  const revoked = ring.revoke("ci", "other");
  await setImmediate();
  written.resolve();
  const { key } = await making;
  await revoked;
  expect(ring.principalOf(key)).toBeUndefined();
  expect(ring.list().map(({ name }) => name)).not.toContain("ci");
  expect((await open({}, store)).ring.principalOf(key)).toBeUndefined();
});

test("a key that cannot be written down is not accepted; one whose end cannot be is not either, until a restart", async () => {
  const { ring, store } = await open();
  const { key } = await ring.create({ name: "old" }, "boss");
  store.broken = true;
  await expect(ring.create({ name: "new" }, "boss")).rejects.toThrow("read-only");
  await expect(ring.revoke("other", "boss")).rejects.toThrow("read-only");
  await expect(ring.revoke("old", "boss")).rejects.toThrow(
    /not accepted from now on.*after a restart.*revoke it again/,
  );
  expect(ring.list().map(({ name }) => name)).toEqual(["admin_api_key", "api_key"]);
  expect(ring.principalOf(key)).toBeUndefined();
  store.broken = false;
  const { ring: restarted } = await open({}, store);
  expect(restarted.principalOf(key)?.name).toBe("old");
  await ring.revoke("old", "boss");
  expect((await open({}, store)).ring.principalOf(key)).toBeUndefined();
});

test("who was let in is held until the key is revoked, expires, or allows less", async () => {
  const { ring, clock } = await open();
  const changed = vi.fn();
  ring.onChange(changed);
  const { key } = await ring.create({ name: "ci", ttlMs: 3_600_000 }, "boss");
  changed.mockClear();
  const principal = ring.principalOf(key);
  if (principal === undefined) throw new Error("not accepted");
  await ring.create({ name: "other" }, "boss");
  ring.replaceConfigured({ ...configured, apiKey: "new" });
  expect(ring.holds(principal)).toBe(true);
  changed.mockClear();
  await clock.advance(3_599_999);
  expect([ring.holds(principal), changed.mock.calls.length]).toEqual([true, 0]);
  await clock.advance(2);
  expect([ring.holds(principal), changed.mock.calls.length]).toEqual([false, 1]);
  expect(ring.principalOf(key)).toBeUndefined();
  expect(ring.endOf(key)).toMatchObject({ name: "ci" });
});

test("a key ends at its instant when the clock is set by an hour, and what it has open within a minute", async () => {
  const { ring, clock } = await open();
  const changed = vi.fn();
  const made = async (name: string) => {
    const { key } = await ring.create({ name, ttlMs: 1_800_000 }, "boss");
    const principal = ring.principalOf(key);
    if (principal === undefined) throw new Error("not accepted");
    return { key, principal };
  };
  const early = await made("early");
  ring.onChange(changed);
  clock.jump(3_600_000);
  expect(ring.principalOf(early.key)).toBeUndefined();
  await clock.advance(60_000);
  expect([ring.holds(early.principal), changed.mock.calls.length]).toEqual([false, 1]);
  const late = await made("late");
  clock.jump(-3_600_000);
  await clock.advance(5_399_999);
  expect(ring.holds(late.principal)).toBe(true);
  await clock.advance(1);
  expect(ring.principalOf(late.key)).toBeUndefined();
});

test("a key of the same name made anew holds nothing of the old one", async () => {
  const { ring } = await open();
  const old = await ring.create({ name: "ci" }, "boss");
  const principal = ring.principalOf(old.key);
  await ring.revoke("ci", "boss");
  await ring.create({ name: "ci" }, "boss");
  expect(principal !== undefined && ring.holds(principal)).toBe(false);
  expect(ring.principalOf(old.key)).toBeUndefined();
});

test("a configured key that gets an owner or loses a scope no longer holds what was open", async () => {
  const { ring } = await open({ keys: [entry("a", "ka", { scopes: ["read", "write"] }), entry("b", "kb")] });
  const [a, b] = [ring.principalOf("ka"), ring.principalOf("kb")];
  if (a === undefined || b === undefined) throw new Error("not accepted");
  const holds = () => [ring.holds(a), ring.holds(b)];
  ring.replaceConfigured({
    ...configured,
    keys: [entry("a", "ka", { scopes: ["read", "write"] }), entry("b", "kb")],
  });
  expect(holds()).toEqual([true, true]);
  ring.replaceConfigured({ ...configured, keys: [entry("a", "ka"), entry("b", "kb", { ownerId: "acme" })] });
  expect(holds()).toEqual([false, false]);
});

test("a key that may do less, or has another name, holds what it is still good for", async () => {
  const { ring } = await open({ adminApiKey: "" });
  const client = ring.principalOf("client");
  if (client === undefined) throw new Error("not accepted");
  ring.replaceConfigured(configured);
  expect([ring.holds(client, "write"), ring.holds(client, "admin"), ring.holds(client)]).toEqual([
    true,
    false,
    false,
  ]);
  ring.replaceConfigured({ ...configured, apiKey: "", keys: [entry("renamed", "client")] });
  expect([ring.holds(client, "read"), ring.holds(client, "write")]).toEqual([true, false]);
});

test("when a key was last used is shown at once and written down, later where it cannot be", async () => {
  const { ring, clock, store, warn } = await open();
  const { key } = await ring.create({ name: "ci" }, "boss");
  await clock.advance(5_000);
  ring.principalOf(key);
  ring.principalOf("client");
  const at = clock.now();
  expect(ring.list().map(({ name, lastUsedAt }) => [name, lastUsedAt])).toEqual([
    ["admin_api_key", null],
    ["api_key", at],
    ["ci", at],
  ]);
  store.broken = true;
  await clock.advance(30_000);
  expect(store.rows.get("ci")?.lastUsedAt).toBeNull();
  expect(warn).toHaveBeenCalledTimes(1);
  store.broken = false;
  await ring[Symbol.asyncDispose]();
  expect(store.rows.get("ci")?.lastUsedAt).toEqual(at);
  expect(clock.armed).toBe(0);
});

test("when thousands of keys were used is written in parts, between which others have their turn", async () => {
  const { ring, clock, store } = await open();
  const used = vi.spyOn(store, "used");
  const keys = [];
  for (let n = 0; n < 1_200; n++) keys.push((await ring.create({ name: `k${n}` }, "boss")).key);
  for (const key of keys) ring.principalOf(key);
  const at = clock.now();
  await clock.advance(30_000);
  await ring[Symbol.asyncDispose]();
  expect(used.mock.calls.map(([uses]) => uses.length)).toEqual([500, 500, 200]);
  expect([...store.rows.values()].every(({ lastUsedAt }) => lastUsedAt?.getTime() === at.getTime())).toBe(
    true,
  );
});

test("one of the configuration is not revoked here, and hides a made one of its name", async () => {
  const { ring, warn } = await open();
  const { key } = await ring.create({ name: "ci" }, "boss");
  ring.replaceConfigured({ ...configured, keys: [entry("ci", "other")] });
  expect(warn).toHaveBeenCalledTimes(1);
  expect(ring.principalOf(key)).toBeUndefined();
  expect(ring.principalOf("other")?.name).toBe("ci");
  await expect(ring.revoke("ci", "boss")).rejects.toThrow(
    /made here is gone.*stands in the configuration and is accepted/,
  );
  await expect(ring.revoke("ci", "boss")).rejects.toThrow(/^key "ci" stands in the configuration/);
  expect(ring.principalOf("other")?.name).toBe("ci");
  ring.replaceConfigured(configured);
  expect(ring.principalOf(key)).toBeUndefined();
  expect(warn).toHaveBeenCalledTimes(1);
  await expect(ring.revoke("nothing", "boss")).rejects.toThrow(/does not exist/);
});

test("that a made key is accepted again, because the configured one of its name is gone, is warned of", async () => {
  const { ring, warn } = await open();
  const { key } = await ring.create({ name: "ci" }, "boss");
  ring.replaceConfigured({ ...configured, keys: [entry("ci", "other")] });
  warn.mockClear();
  ring.replaceConfigured(configured);
  expect(ring.principalOf(key)?.name).toBe("ci");
  expect(warn).toHaveBeenCalledExactlyOnceWith({ keys: ["ci"] }, expect.stringMatching(/accepted again/));
  ring.replaceConfigured(configured);
  expect(warn).toHaveBeenCalledTimes(1);
});

test("who made and revoked which key is told in events and in the log, without the key", async () => {
  const { ring, events, info, store } = await open();
  const { key } = await ring.create({ name: "ci", ownerId: "acme", scopes: ["read"], ttlMs: 1_000 }, "boss");
  const { name } = (await ring.create({ name: "all" }, "boss")).view;
  const expires_at = store.rows.get("ci")?.expiresAt?.toISOString();
  await ring.revoke("ci", "other");
  const ci = { name: "ci", owner_id: "acme", scopes: ["read"], expires_at };
  const all = { name, scopes: ["read", "write"] };
  const none = { sandboxId: "", ownerId: "" };
  expect(events.events).toEqual([
    { type: "key.created", ...none, ownerId: "acme", data: { ...ci, actor: "boss" } },
    { type: "key.created", ...none, data: { ...all, actor: "boss" } },
    { type: "key.revoked", ...none, ownerId: "acme", data: { ...ci, actor: "other" } },
  ]);
  expect(events.undocumented).toEqual([]);
  expect(info.mock.calls.map(([line]) => line)).toEqual([
    { event: "key.created", outcome: "ok", ...ci, principal: "boss" },
    { event: "key.created", outcome: "ok", ...all, principal: "boss" },
    { event: "key.revoked", outcome: "ok", ...ci, principal: "other" },
  ]);
  expect(JSON.stringify([events.events, info.mock.calls])).not.toContain(key);
});
