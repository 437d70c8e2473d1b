import { hash, randomBytes, timingSafeEqual } from "node:crypto";
import { setImmediate } from "node:timers/promises";
import {
  defaultKeyScopes,
  type KeyScope,
  keyNamePattern,
  keyScopes,
  principalNames,
  reservedKeyNames,
} from "@alcove/wire";
import type { Logger } from "../../platform/logger.ts";
import { TurnsByName } from "../../platform/turns-by-name.ts";
import type { Clock, Timer } from "../../ports/clock.ts";
import { BadRequest, Conflict, NotFound, ResourceLimit, Unavailable } from "../../ports/errors.ts";
import type { EventSink } from "../../ports/event-sink.ts";
import type { KeyRow, KeyStore } from "../../ports/key-store.ts";
import { parseOwnerId } from "../owners.ts";
import type { Principal } from "./principal.ts";

/** A key as the configuration gives it. */
export type ConfiguredKey = Omit<KeyRow, "createdAt" | "lastUsedAt">;

export interface ConfiguredKeys {
  /** Empty: there is none. */
  apiKey: string;
  /** Empty: `apiKey` administers, if `adminFallbackEnabled`. */
  adminApiKey: string;
  adminFallbackEnabled: boolean;
  keys: readonly ConfiguredKey[];
}

/** What may be known of a key. */
export interface KeyView extends Omit<KeyRow, "hash" | "createdAt"> {
  /** Null for one of the configuration. */
  createdAt: Date | null;
}

interface KnownKey extends KeyView {
  readonly hash: string;
  /** Where it is looked for. */
  readonly slot: string;
  readonly principal: Principal;
}

export interface KeyInput {
  name: string;
  ownerId?: string | undefined;
  scopes?: readonly KeyScope[] | undefined;
  ttlMs?: number | undefined;
}

export interface KeyRingOptions {
  store: KeyStore;
  clock: Clock;
  logger: Pick<Logger, "info" | "warn">;
  events: EventSink;
  configured: ConfiguredKeys;
}

const namePattern = new RegExp(keyNamePattern);
const mostKeys = 10_000;
const keyBytes = 32;
/** How often last uses are written down. */
const usesEveryMs = 30_000;
/** And so many in one write: a few milliseconds. */
const usesAtOnce = 500;
/** How late the end of a key may be seen by what it has open, when the clock was changed. */
const expiryLookMs = 60_000;

/**
 * The keys that are accepted: those of the configuration, and those that were made with `/admin/keys`, of which the
 * store keeps hashes alone. A change counts from the next request on. docs/api/authentication.md, Keys.
 */
export class KeyRing implements AsyncDisposable {
  readonly #store: KeyStore;
  readonly #clock: Clock;
  readonly #logger: Pick<Logger, "info" | "warn">;
  readonly #events: EventSink;
  /** Where a key is looked for must not tell how much of it is right. */
  readonly #salt = randomBytes(16).toString("base64");
  readonly #origins = new WeakMap<Principal, KnownKey>();
  readonly #onChange: (() => void)[] = [];
  #configured: readonly KnownKey[] = [];
  readonly #stored = new Map<string, KnownKey>();
  /**
   * Makes and revokes keys of one name one after the other: of both at once the store could have the one and memory the other, and a
   * key that was revoked would be accepted until the next start.
   */
  readonly #changes = new TurnsByName();
  #byName = new Map<string, KnownKey>();
  #bySlot = new Map<string, KnownKey>();
  readonly #used = new Map<string, Date>();
  /** Names of keys whose last use is not written down yet. */
  readonly #unwritten = new Set<string>();
  #writingUses: Timer | undefined;
  #written: Promise<void> | undefined;
  #expiry: Timer | undefined;
  #lookedMs = 0;

  private constructor(options: Omit<KeyRingOptions, "configured">) {
    this.#store = options.store;
    this.#clock = options.clock;
    this.#logger = options.logger;
    this.#events = options.events;
  }

  static async open(options: KeyRingOptions): Promise<KeyRing> {
    const ring = new KeyRing(options);
    for (const row of await options.store.list()) ring.#stored.set(row.name, ring.#known(row));
    ring.replaceConfigured(options.configured);
    return ring;
  }

  /** Told when a key is no longer accepted, or for less. */
  onChange(listener: () => void): void {
    this.#onChange.push(listener);
  }

  /** From now on these are the keys of the configuration. */
  replaceConfigured(configured: ConfiguredKeys): void {
    const { apiKey, adminApiKey, adminFallbackEnabled, keys } = configured;
    const were = new Set(this.#configured.map(({ name }) => name));
    const fallsBack = adminApiKey === "" && adminFallbackEnabled;
    const fixed = (name: string, key: string, scopes: readonly KeyScope[]): KnownKey[] =>
      key === "" ? [] : [this.#known({ name, hash: sha256(key), ownerId: "", scopes, expiresAt: null })];
    this.#configured = [
      ...keys.map((key) => this.#known(key)),
      ...fixed(principalNames.clientKey, apiKey, fallsBack ? keyScopes : defaultKeyScopes),
      // The same key given twice is the one that may do more.
      ...fixed(principalNames.adminKey, adminApiKey, keyScopes),
    ];
    const hidden = keys.filter(({ name }) => this.#stored.has(name)).map(({ name }) => name);
    if (hidden.length > 0)
      this.#logger.warn(
        { keys: hidden },
        `auth.keys names ${hidden.join(", ")}, as keys made by the service are named: those are not accepted; revoke them or choose other names`,
      );
    const back = [...were].filter((name) => this.#stored.has(name) && !hidden.includes(name));
    if (back.length > 0)
      this.#logger.warn(
        { keys: back },
        `${back.join(", ")} left auth.keys: the keys of these names that the service made are accepted again; revoke them if they should not be`,
      );
    this.#changed();
  }

  /** @returns who has this key, unless it is unknown or has expired. */
  principalOf(key: string): Principal | undefined {
    const known = this.#accepted(key);
    if (known !== undefined) this.#noteUse(known);
    return known?.principal;
  }

  /** @returns the name of a key that is accepted, without taking that for a use of it. */
  nameOf(key: string): string | undefined {
    return this.#accepted(key)?.name;
  }

  /** Whether there is a key at all. */
  get isEmpty(): boolean {
    return this.#bySlot.size === 0;
  }

  /** @returns the name of the key and when it ended, if it did. */
  endOf(key: string): { name: string; at: Date } | undefined {
    const known = this.#find(key);
    return known?.expiresAt && this.#isOver(known) ? { name: known.name, at: known.expiresAt } : undefined;
  }

  /**
   * Whether who was let in with a key would be let in with it now, by whatever name.
   * @param scope what for; undefined: for as much as then.
   */
  holds(principal: Principal, scope?: KeyScope): boolean {
    const then = this.#origins.get(principal);
    if (then === undefined) return false;
    const now = this.#bySlot.get(then.slot);
    if (now === undefined || this.#isOver(now) || now.ownerId !== then.ownerId) return false;
    const wanted = scope === undefined ? then.scopes : [scope];
    return wanted.every((one) => now.scopes.includes(one));
  }

  /** @returns what stays the same as long as it is the same key of the same owner, over restarts; undefined for who needed none. */
  identityOf(principal: Principal): string | undefined {
    const known = this.#origins.get(principal);
    return known === undefined ? undefined : identity(known);
  }

  /** Of the keys that are accepted until they expire. */
  *identities(): Iterable<[string, Principal]> {
    for (const known of this.#bySlot.values()) yield [identity(known), known.principal];
  }

  /** By name. */
  list(): KeyView[] {
    return [...this.#byName.values()]
      .map(({ hash: _, slot: _s, principal: _p, ...view }) => ({
        ...view,
        lastUsedAt: this.#used.get(view.name) ?? view.lastUsedAt,
      }))
      .sort((a, b) => (a.name < b.name ? -1 : 1));
  }

  /**
   * @param actor the name of the key that asks.
   * @returns the key, which nobody can be told again.
   * @throws BadRequest naming the field; Conflict when the name is taken; ResourceLimit.
   */
  async create(input: KeyInput, actor: string): Promise<{ key: string; view: KeyView }> {
    const { name, scopes = defaultKeyScopes, ttlMs } = input;
    if (!namePattern.test(name))
      throw new BadRequest(
        `name ${JSON.stringify(name.slice(0, 80))} must be 1 to 128 letters, digits, ".", "_" or "-", the first a letter or digit`,
      );
    if (reservedKeyNames.includes(name))
      throw new Conflict(`the name "${name}" stands for something else in logs; choose another`);
    const ownerId = parseOwnerId(input.ownerId);
    if (input.ownerId !== undefined && ownerId === "")
      throw new BadRequest("owner_id is empty; leave it out for a key that is bound to nobody");
    if (scopes.length === 0) throw new BadRequest(`scopes is empty; give some of ${keyScopes.join(", ")}`);
    if (ownerId !== "" && scopes.includes("admin"))
      throw new BadRequest(
        `a key bound to an owner cannot administer; leave out owner_id, or the scope admin`,
      );
    const given = keyScopes.filter((scope) => scopes.includes(scope));
    return this.#changes.run(name, () => this.#make({ name, ownerId, scopes: given, ttlMs }, actor));
  }

  async #make(
    wanted: { name: string; ownerId: string; scopes: readonly KeyScope[]; ttlMs: number | undefined },
    actor: string,
  ): Promise<{ key: string; view: KeyView }> {
    const { name, ownerId, scopes, ttlMs } = wanted;
    if (this.#byName.has(name)) throw taken(name);
    if (this.#stored.size >= mostKeys)
      throw new ResourceLimit(`this service keeps ${mostKeys} keys; revoke one that is not used`);
    const createdAt = this.#clock.now();
    const key = `alcove_${randomBytes(keyBytes).toString("base64url")}`;
    const row: KeyRow = {
      name,
      hash: sha256(key),
      ownerId,
      scopes,
      createdAt,
      expiresAt: ttlMs === undefined ? null : new Date(createdAt.getTime() + ttlMs),
      lastUsedAt: null,
    };
    if (!(await this.#store.create(row))) throw taken(name);
    const made = this.#known(row);
    this.#stored.set(name, made);
    this.#changed();
    this.#tell("key.created", made, actor);
    const { hash: _, slot: _s, principal: _p, ...view } = made;
    return { key, view };
  }

  /**
   * It is not accepted from now on, and what it has open ends.
   * @param actor the name of the key that asks.
   * @throws NotFound; Conflict for one of the configuration, which stays, also when a made one of its name is gone now;
   * Unavailable when it is not accepted by this run of the service alone, because that could not be written down.
   */
  revoke(name: string, actor: string): Promise<void> {
    return this.#changes.run(name, () => this.#remove(name, actor));
  }

  async #remove(name: string, actor: string): Promise<void> {
    const stays = this.#configured.some((known) => known.name === name);
    const removed = await this.#store.remove(name).catch((cause: unknown) => {
      if (!this.#forget(name, actor)) throw cause;
      throw new Unavailable(
        `key "${name}" is not accepted from now on, but the database could not be changed: after a restart it would be; revoke it again until that succeeds`,
        { cause },
      );
    });
    const gone = this.#forget(name, actor) || removed;
    if (stays)
      throw new Conflict(
        `${gone ? `the key "${name}" that was made here is gone, but one of this name` : `key "${name}"`} stands in the configuration and is accepted; remove it there and send SIGHUP`,
      );
    if (!gone)
      throw new NotFound(`key ${JSON.stringify(name.slice(0, 128))} does not exist`, { what: "key" });
  }

  #forget(name: string, actor: string): boolean {
    const known = this.#stored.get(name);
    if (known === undefined) return false;
    this.#stored.delete(name);
    this.#used.delete(name);
    this.#unwritten.delete(name);
    this.#changed();
    this.#tell("key.revoked", known, actor);
    return true;
  }

  /** The history and the log tell which key a call was about; the audit history, who called. */
  #tell(event: "key.created" | "key.revoked", known: KnownKey, actor: string): void {
    const { name, ownerId, scopes, expiresAt } = known;
    const data = {
      name,
      ...(ownerId === "" ? {} : { owner_id: ownerId }),
      scopes: [...scopes],
      ...(expiresAt === null ? {} : { expires_at: expiresAt.toISOString() }),
    };
    this.#events.emit({ type: event, sandboxId: "", ownerId, data: { ...data, actor } });
    this.#logger.info({ event, outcome: "ok", ...data, principal: actor }, event);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#expiry?.cancel();
    this.#writingUses?.cancel();
    this.#writingUses = undefined;
    await this.#written;
    await this.#writeUses();
  }

  #known(
    key: Omit<KeyRow, "createdAt" | "lastUsedAt"> & Partial<Pick<KeyRow, "createdAt" | "lastUsedAt">>,
  ): KnownKey {
    const { name, hash, ownerId, scopes, expiresAt, createdAt = null, lastUsedAt = null } = key;
    const principal: Principal = { name, ownerId: ownerId || undefined, scopes: new Set(scopes) };
    const known: KnownKey = {
      name,
      hash,
      ownerId,
      scopes,
      expiresAt,
      createdAt,
      lastUsedAt,
      slot: this.#slotOf(hash),
      principal,
    };
    this.#origins.set(principal, known);
    return known;
  }

  #accepted(key: string): KnownKey | undefined {
    const known = this.#find(key);
    return known === undefined || this.#isOver(known) ? undefined : known;
  }

  #find(key: string): KnownKey | undefined {
    const digest = sha256(key);
    const known = this.#bySlot.get(this.#slotOf(digest));
    if (known === undefined) return undefined;
    return timingSafeEqual(Buffer.from(known.hash, "hex"), Buffer.from(digest, "hex")) ? known : undefined;
  }

  #slotOf(digest: string): string {
    return hash("sha256", this.#salt + digest, "base64");
  }

  #isOver(known: KnownKey): boolean {
    return known.expiresAt !== null && known.expiresAt.getTime() <= this.#clock.now().getTime();
  }

  /** A configured key beats a stored one of its name. */
  #changed(): void {
    const all = [...this.#stored.values(), ...this.#configured];
    this.#byName = new Map(all.map((known) => [known.name, known]));
    this.#bySlot = new Map();
    for (const known of all) if (this.#byName.get(known.name) === known) this.#bySlot.set(known.slot, known);
    this.#watchExpiry();
    for (const listener of this.#onChange) listener();
  }

  /** What a key has open ends with it. */
  #watchExpiry(): void {
    this.#expiry?.cancel();
    this.#expiry = undefined;
    const nowMs = this.#clock.now().getTime();
    this.#lookedMs = nowMs;
    const ahead = [...this.#byName.values()]
      .map(({ expiresAt }) => expiresAt?.getTime() ?? 0)
      .filter((atMs) => atMs > nowMs);
    if (ahead.length === 0) return;
    const delayMs = Math.min(expiryLookMs, Math.min(...ahead) - nowMs + 1);
    this.#expiry = this.#clock.setTimer(delayMs, () => {
      const sinceMs = this.#lookedMs;
      this.#watchExpiry();
      const ended = ahead.some((atMs) => atMs > sinceMs && atMs <= this.#lookedMs);
      if (ended) for (const listener of this.#onChange) listener();
    });
  }

  #noteUse(known: KnownKey): void {
    this.#used.set(known.name, this.#clock.now());
    if (known.createdAt === null) return;
    this.#unwritten.add(known.name);
    this.#writingUses ??= this.#clock.setTimer(usesEveryMs, () => {
      this.#writingUses = undefined;
      this.#written = this.#writeUses();
    });
  }

  /** Some at a time: others wait for a write. */
  async #writeUses(): Promise<void> {
    const names = [...this.#unwritten];
    for (let from = 0; from < names.length; from += usesAtOnce) {
      if (from > 0) await setImmediate();
      const uses = names.slice(from, from + usesAtOnce).flatMap((name) => {
        const at = this.#used.get(name);
        return at === undefined ? [] : [{ name, at }];
      });
      if (uses.length === 0) continue;
      for (const { name } of uses) this.#unwritten.delete(name);
      try {
        await this.#store.used(uses);
      } catch (error) {
        // With the next use.
        for (const { name } of uses) this.#unwritten.add(name);
        this.#logger.warn({ err: error }, "when keys were last used could not be written down yet");
        return;
      }
    }
  }
}

function sha256(key: string): string {
  return hash("sha256", key, "hex");
}

function identity({ hash, ownerId }: KnownKey): string {
  return `${hash}\n${ownerId}`;
}

function taken(name: string): Conflict {
  return new Conflict(`a key "${name}" exists already; revoke it, or choose another name`);
}
