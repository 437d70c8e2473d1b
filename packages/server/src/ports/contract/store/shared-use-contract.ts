import fc from "fast-check";
import { describe, expect, it } from "vitest";
import type { AuditRow } from "../../audit-store.ts";
import type { KeyRow } from "../../key-store.ts";
import type { QuotaRow } from "../../quota-store.ts";
import type { Store } from "../../store.ts";
import type { TemplateRow } from "../../template-store.ts";

const start = Date.parse("2030-01-01T00:00:00Z");
const at = (ms: number) => new Date(start + ms);

const quota = (ownerId: string, change: Partial<QuotaRow> = {}): QuotaRow => ({
  ownerId,
  maxSandboxes: 0,
  maxTtlMs: 0,
  maxExecTimeoutMs: 0,
  maxMemoryMb: 0,
  maxVcpus: 0,
  createdAt: at(0),
  updatedAt: at(0),
  ...change,
});

const template = (name: string, change: Partial<TemplateRow> = {}): TemplateRow => ({
  name,
  description: undefined,
  image: "host",
  provider: undefined,
  memoryMb: undefined,
  vcpus: undefined,
  ttlMs: undefined,
  metadata: undefined,
  env: undefined,
  user: undefined,
  workdir: undefined,
  network: undefined,
  createdAt: at(0),
  updatedAt: at(0),
  ...change,
});

const key = (name: string, change: Partial<KeyRow> = {}): KeyRow => ({
  name,
  hash: `hash of ${name}`,
  ownerId: "",
  scopes: ["read"],
  createdAt: at(0),
  expiresAt: null,
  lastUsedAt: null,
  ...change,
});

const entry = (ms: number, change: Partial<AuditRow> = {}): Omit<AuditRow, "id"> => ({
  createdAt: at(ms),
  actor: "admin_api_key",
  method: "PUT",
  path: "/api/v1/quotas/ada",
  status: 200,
  durationMs: 1.5,
  requestId: `req-${ms}`,
  remoteAddr: "127.0.0.1",
  userAgent: "curl/8",
  ...change,
});

/** What every store must do with quotas, templates, keys and the audit history. */
export function sharedUseContract(under: { store: () => Store; reopen: () => Promise<void> }): void {
  describe("quotas", () => {
    const quotas = () => under.store().quotas;

    it("are kept as they were saved, replaced with the time of making, and removed once", async () => {
      const saved = quota("Ünï 🏠", {
        maxSandboxes: 3,
        maxTtlMs: 1_000,
        maxExecTimeoutMs: 2_000,
        maxMemoryMb: 5,
        maxVcpus: 6,
      });
      expect(await quotas().save(saved)).toEqual(saved);
      const replaced = quota(saved.ownerId, { maxSandboxes: 4, createdAt: at(9), updatedAt: at(9) });
      expect(await quotas().save(replaced)).toEqual({ ...replaced, createdAt: at(0) });
      await under.reopen();
      expect(await quotas().get(saved.ownerId)).toEqual({ ...replaced, createdAt: at(0) });
      expect([await quotas().remove(saved.ownerId), await quotas().remove(saved.ownerId)]).toEqual([
        true,
        false,
      ]);
      expect(await quotas().get(saved.ownerId)).toBeUndefined();
    });

    it("are listed by owner, page by page", async () => {
      for (const owner of ["b", "a", "c"]) await quotas().save(quota(owner));
      const first = await quotas().list({ afterOwnerId: "", limit: 2 });
      expect(first.map(({ ownerId }) => ownerId)).toEqual(["a", "b"]);
      const next = await quotas().list({ afterOwnerId: "b", limit: 2 });
      expect(next.map(({ ownerId }) => ownerId)).toEqual(["c"]);
    });

    it("are summed up without naming owners", async () => {
      await quotas().save(quota("a", { maxSandboxes: 1, maxTtlMs: 1 }));
      await quotas().save(quota("b", { maxTtlMs: 1, maxExecTimeoutMs: 1 }));
      await quotas().save(quota("c"));
      expect(await quotas().summary()).toEqual({
        total: 3,
        withMaxSandboxes: 1,
        withMaxTtl: 2,
        withMaxExecTimeout: 1,
      });
    });
  });

  describe("templates", () => {
    const templates = () => under.store().templates;
    const create = (made: TemplateRow) => templates().create(made, { most: 1_000 });
    const full = template("full", {
      description: 'say "hi"',
      provider: "native",
      memoryMb: 64,
      vcpus: 2,
      ttlMs: 5_000,
      metadata: { "a.b": "c" },
      env: { A: "1" },
      user: "app",
      workdir: "/w",
      network: "none",
    });

    it("are made once by name, and keep what was given and what was not", async () => {
      expect(await create(full)).toBe("created");
      expect(await create(template("full", { image: "other" }))).toBe("taken");
      expect(await create(template("bare"))).toBe("created");
      await under.reopen();
      expect(await templates().get("full")).toEqual(full);
      expect(await templates().get("bare")).toEqual(template("bare"));
      expect(await templates().get("none")).toBeUndefined();
    });

    it("let one of many that are made at once with one name win", async () => {
      const made = await Promise.all(
        Array.from({ length: 8 }, (_, n) => create(template("one", { memoryMb: n + 16 }))),
      );
      expect(made.filter((outcome) => outcome === "created")).toHaveLength(1);
      expect((await templates().get("one"))?.memoryMb).toBe(made.indexOf("created") + 16);
    });

    it("are so many at most, whatever is made at once", async () => {
      const made = await Promise.all(
        Array.from({ length: 8 }, (_, n) => templates().create(template(`t${n}`), { most: 5 })),
      );
      expect(made.filter((outcome) => outcome === "full")).toHaveLength(3);
      expect((await templates().list({ afterName: "", limit: 100 })).rows).toHaveLength(5);
    });

    it("come in short pages when they are large, none missing", async () => {
      const names = Array.from({ length: 6 }, (_, n) => `large-${n}`);
      for (const name of names) await create(template(name, { env: { TEXT: "x".repeat(200_000) } }));
      const seen: string[] = [];
      for (let afterName = ""; ; ) {
        const { rows, more } = await templates().list({ afterName, limit: 100 });
        expect(rows.length).toBeLessThan(6);
        seen.push(...rows.map(({ name }) => name));
        if (!more) break;
        afterName = seen.at(-1) ?? "";
      }
      expect(seen).toEqual(names);
    });

    it("are replaced whole but for the time of making, listed by name, and removed once", async () => {
      await create(full);
      await create(template("also"));
      const replaced = template("full", { image: "other", createdAt: at(5), updatedAt: at(5) });
      expect(await templates().replace(replaced)).toEqual({ ...replaced, createdAt: at(0) });
      expect(await templates().replace(template("none"))).toBeUndefined();
      const names = async (afterName: string, limit: number) =>
        (await templates().list({ afterName, limit })).rows.map(({ name }) => name);
      expect([await names("", 1), await names("also", 9)]).toEqual([["also"], ["full"]]);
      expect([await templates().remove("full"), await templates().remove("full")]).toEqual([true, false]);
    });
  });

  describe("keys", () => {
    const keys = () => under.store().keys;

    it("are made once by name, listed by name, and removed once", async () => {
      const bound = key("bound", { ownerId: "ada", scopes: ["read", "write"], expiresAt: at(9) });
      expect(await keys().create(bound)).toBe(true);
      expect(await keys().create(key("bound", { hash: "other" }))).toBe(false);
      expect(await keys().create(key("admin", { scopes: ["admin"] }))).toBe(true);
      await under.reopen();
      expect(await keys().list()).toEqual([key("admin", { scopes: ["admin"] }), bound]);
      expect([await keys().remove("bound"), await keys().remove("bound")]).toEqual([true, false]);
      expect(await keys().list()).toHaveLength(1);
    });

    it("remember when they were used last, and never an earlier time", async () => {
      await keys().create(key("a"));
      await keys().create(key("b"));
      await keys().used([
        { name: "a", at: at(5) },
        { name: "gone", at: at(6) },
      ]);
      await keys().used([{ name: "a", at: at(3) }]);
      expect((await keys().list()).map(({ lastUsedAt }) => lastUsedAt)).toEqual([at(5), null]);
    });
  });

  describe("the audit history", () => {
    const audit = () => under.store().audit;
    const ids = async (filter: Partial<Parameters<Store["audit"]["list"]>[0]>) =>
      (await audit().list({ limit: 100, ...filter })).map(({ requestId }) => requestId);

    it("is told newest first, whole, after a restart too", async () => {
      await audit().append(entry(2));
      await audit().append(entry(1, { actor: "anonymous", status: 401 }));
      await under.reopen();
      const [newest, oldest] = await audit().list({ limit: 100 });
      expect(newest).toEqual({ ...entry(1, { actor: "anonymous", status: 401 }), id: newest?.id });
      expect(oldest).toEqual({ ...entry(2), id: oldest?.id });
      expect(newest?.id).toBeGreaterThan(oldest?.id ?? Number.NaN);
    });

    it("is filtered by every field, times included, and part of the path, taken literally", async () => {
      await audit().append(entry(1));
      await audit().append(entry(2, { actor: "ops", method: "DELETE", path: "/a_b%c", status: 404 }));
      await audit().append(entry(3, { path: "/aXbYc" }));
      expect(await ids({ actor: "ops" })).toEqual(["req-2"]);
      expect(await ids({ method: "PUT" })).toEqual(["req-3", "req-1"]);
      expect(await ids({ status: 404 })).toEqual(["req-2"]);
      expect(await ids({ path: "a_b%" })).toEqual(["req-2"]);
      expect(await ids({ since: at(2) })).toEqual(["req-3", "req-2"]);
      expect(await ids({ until: at(2) })).toEqual(["req-2", "req-1"]);
      expect(await ids({ limit: 1 })).toEqual(["req-3"]);
    });

    it("forgets by age and by number, and never gives an id twice", async () => {
      await fc.assert(
        fc.asyncProperty(
          fc.array(fc.nat(9), { maxLength: 12 }),
          fc.nat(10),
          fc.nat(12),
          async (ages, before, keep) => {
            const highest = (await audit().list({ limit: 1 }))[0]?.id ?? 0;
            await audit().purge({ before: at(0), keep: 0 });
            for (const ms of ages) await audit().append(entry(ms));
            await audit().purge({ before: at(before), keep });
            const left = await audit().list({ limit: 100 });
            const newest = ages.slice(Math.max(0, ages.length - keep)).reverse();
            expect(left.map(({ createdAt }) => createdAt.getTime() - start)).toEqual(
              newest.filter((ms) => ms >= before),
            );
            for (const { id } of left) expect(id).toBeGreaterThan(highest);
          },
        ),
        { numRuns: 40 },
      );
    });
  });
}
