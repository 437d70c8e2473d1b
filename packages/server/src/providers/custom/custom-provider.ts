import type { Capability } from "@alcove/wire";
import type { Static } from "typebox";
import { abortable, ignoreOutcome } from "../../platform/abortable.ts";
import { deadlineAfter } from "../../platform/deadline.ts";
import type { Taker } from "../../platform/fair-turns.ts";
import { fingerprint } from "../../platform/fingerprint.ts";
import type { Logger } from "../../platform/logger.ts";
import { messageOf } from "../../platform/message-of.ts";
import {
  BadRequest,
  type CallOptions,
  type Clock,
  type InventoryEntry,
  NotFound,
  type ProviderCheck,
  ProviderError,
  RuntimeGone,
  type RuntimeId,
  type RuntimeProvider,
  type RuntimeSpec,
  type SandboxOperations,
  type SpawnedRuntime,
  type SpawnOptions,
  type Timer,
} from "../../ports/index.ts";
import { RuntimeLabels, SpawnsUnderWay } from "../runtime-records/index.ts";
import { BackendCalls, isRefusal } from "./backend-calls.ts";
import { BackendClient } from "./backend-client.ts";
import { backendCapabilities, Health, SandboxAnswer, type SpawnRequest } from "./contract-schemas.ts";
import type { CustomConfig } from "./custom-config.ts";
import { type BackendCapability, CustomSandbox } from "./custom-sandbox.ts";
import { Unreadable } from "./tolerant-reader.ts";

/** What is had with the calls that every backend has. */
const always: readonly Capability[] = [
  "spawn",
  "exec",
  "exec_stream",
  "console",
  "health",
  "runtime_inventory",
  "images",
];
const announced: Readonly<Record<BackendCapability, Capability | undefined>> = {
  files: "files",
  reattach: "reattach",
  signals: "signals",
  process_tree: "process_tree",
  expiry: undefined,
};
/** In whose turns the service reads what it asks for itself. */
const ownTurns: Taker = { principal: "", owner: "" };
const undoMs = 20_000;
/** Sandboxes that a backend's list may have, of all installations. */
const sandboxesAtMost = 100_000;
/** Bytes of one of them: its labels are 64 KiB of metadata and more, which backends may spell as long as they like. */
const sandboxAtMost = 1_048_576;
/** Name of an image as a backend resolved it; what else it says is no image's name. */
const imageName = /^[!-~]{1,512}$/;
/** When a spawn whose answer was lost is ended again: it may still be carried out. */
const lostSpawnLooksMs = [0, 500, 1_500];
const defaultPollMs = 10_000;
const defaultSilenceMs = 45_000;

/**
 * Sandboxes of a backend that speaks the contract of docs/custom-provider.md. A runtime is a sandbox there that carries our
 * labels and our id: being made (`#making`), connected (`#connected`), or known from the backend's list alone.
 */
export class CustomProvider implements RuntimeProvider {
  readonly name = "custom";
  readonly defaultImage: string;
  readonly place: string;
  readonly #capabilities = new Set<Capability>(always);
  readonly #has = new Set<BackendCapability>();
  readonly #config: CustomConfig;
  readonly #instanceId: string;
  readonly #labels: RuntimeLabels;
  readonly #ringBytes: number | undefined;
  readonly #silenceMs: number;
  readonly #pollMs: number;
  readonly #clock: Clock;
  readonly #logger: Logger;
  readonly #client: BackendClient;
  readonly #calls: BackendCalls;
  readonly #spawns = new SpawnsUnderWay();
  readonly #making = new Map<RuntimeId, { done: Promise<unknown>; stop: AbortController }>();
  /** Runtimes whose spawn had no answer: it may be carried out later. */
  readonly #unanswered = new Set<RuntimeId>();
  readonly #connected = new Map<RuntimeId, CustomSandbox>();
  readonly #images = new Map<RuntimeId, string>();
  readonly #exitListeners = new Set<(runtimeId: RuntimeId, reason: string) => void>();
  readonly #closed = new AbortController();
  #poll: Timer | undefined;

  constructor(options: {
    config: CustomConfig;
    instanceId: string;
    /** Signs what labels say of a sandbox. */
    noteKey: Uint8Array;
    ringBytes?: number;
    /** How long a stream may say nothing at all. */
    silenceMs?: number;
    /** How often sandboxes that ended by themselves are looked for. */
    pollMs?: number;
    clock: Clock;
    logger: Logger;
  }) {
    const { config, logger } = options;
    this.#config = config;
    this.#instanceId = options.instanceId;
    this.#labels = new RuntimeLabels({ installation: options.instanceId, key: options.noteKey });
    this.#ringBytes = options.ringBytes;
    this.#silenceMs = options.silenceMs ?? defaultSilenceMs;
    this.#pollMs = options.pollMs ?? defaultPollMs;
    this.#clock = options.clock;
    this.#logger = logger;
    this.defaultImage = config.defaultImage;
    this.place = `${config.url} (${config.apiKey === "" ? "without a key" : `key ${fingerprint(config.apiKey, options.noteKey)}`})`;
    this.#client = new BackendClient(config);
    this.#calls = new BackendCalls({
      client: this.#client,
      timeoutMs: config.timeoutMs,
      apiKey: config.apiKey,
      logger,
    });
  }

  /** What the backend announced when it was last asked, and never beyond what is done here. */
  get capabilities(): ReadonlySet<Capability> {
    return this.#capabilities;
  }

  async check(options: CallOptions): Promise<ProviderCheck> {
    const notes = ["what isolates sandboxes, and what memory and processors they get, is the backend's"];
    if (!/^https?:\/\//.test(this.#config.url))
      return {
        healthy: false,
        error: "no backend: set providers.custom.url to its http:// or https:// address",
        notes,
      };
    try {
      const request = { method: "GET" as const, path: ["health"] };
      const health = await this.#calls.read("say how it is", Health, request, options);
      this.#learn(health.capabilities);
      const missing = backendCapabilities.filter((each) => !this.#has.has(each));
      if (missing.length > 0) notes.push(`the backend does not announce: ${missing.join(", ")}`);
      if (health.status.toLowerCase() === "ok") return { healthy: true, notes };
      return { healthy: false, error: "the backend says that it is not ok; its own log tells why", notes };
    } catch (error) {
      return { healthy: false, error: messageOf(error), notes };
    }
  }

  settings(): Record<string, unknown> {
    return { isolation: "hosted", network_mode: this.#config.networkMode };
  }

  spawn(spec: RuntimeSpec, options: SpawnOptions): Promise<SpawnedRuntime> {
    return this.#spawns.run(spec.runtimeId, options, () => this.#spawn(spec, options));
  }

  async #spawn(spec: RuntimeSpec, options: SpawnOptions): Promise<SpawnedRuntime> {
    options.signal.throwIfAborted();
    const { runtimeId } = spec;
    const earlier = this.#making.get(runtimeId);
    if (earlier !== undefined)
      await abortable(earlier.done.then(ignoreOutcome, ignoreOutcome), options.signal);
    if (this.#connected.has(runtimeId)) return { image: this.#images.get(runtimeId) ?? spec.image };
    const network = this.#networkOf(spec);
    const stop = new AbortController();
    const cut = () => stop.abort(options.signal.reason);
    options.signal.addEventListener("abort", cut, { once: true });
    const startedAt = performance.now();
    // It goes on when its caller leaves, until it has undone itself: what was asked of the backend may be carried out.
    const done = this.#make(spec, network, stop.signal).finally(() => {
      options.signal.removeEventListener("abort", cut);
      this.#making.delete(runtimeId);
    });
    this.#making.set(runtimeId, { done, stop });
    const image = await abortable(done, options.signal);
    options.onStage?.("create", performance.now() - startedAt);
    return { image };
  }

  /** @throws BadRequest for more than the configuration allows. */
  #networkOf(spec: RuntimeSpec): "none" | "outbound" {
    if (spec.network === "host")
      throw new BadRequest(
        "provider custom has no host whose network a sandbox could share; leave network out",
      );
    if (spec.network === "outbound" && this.#config.networkMode === "none")
      throw new BadRequest(
        "provider custom gives sandboxes no network here: providers.custom.network_mode is none, and a request can only tighten it",
      );
    return spec.network ?? this.#config.networkMode;
  }

  async #make(spec: RuntimeSpec, network: "none" | "outbound", signal: AbortSignal): Promise<string> {
    const { runtimeId } = spec;
    let isRefused = false;
    let isAnswered = false;
    const known = async (error: unknown) => {
      isRefused = isRefusal(error, 400, 404, 422);
      const hidden = await this.#calls.hiddenBy(error, { signal: this.#closed.signal });
      if (hidden !== undefined) return hidden;
      if (isRefusal(error, 404))
        return new NotFound(
          `image "${spec.image}" is not there at the backend of provider custom; add it there, or name another image`,
          { what: "image" },
        );
      if (isRefusal(error, 400, 422))
        return new BadRequest(
          `the backend refused to make a sandbox as it was asked for, of image "${spec.image}"${placeOf(spec)}`,
        );
      return undefined;
    };
    const json: Static<typeof SpawnRequest> = {
      id: runtimeId,
      image: spec.image,
      memory_mb: spec.memoryMb,
      vcpus: spec.vcpus,
      env: { ...spec.env },
      ...(spec.user === undefined ? {} : { user: spec.user }),
      ...(spec.workdir === undefined ? {} : { workdir: spec.workdir }),
      network,
      expires_in_ms: spec.expiresInMs,
      labels: this.#labels.of(spec),
    };
    const request = { method: "POST" as const, path: ["sandboxes"], json, known };
    try {
      // Not with the caller's signal: a request that is cut may be carried out all the same.
      const unbounded = { signal: new AbortController().signal };
      const made = await this.#calls.read("make a sandbox", SandboxAnswer, request, unbounded);
      isAnswered = true;
      if (made.id !== runtimeId)
        throw new ProviderError("the backend made a sandbox under another id than it was asked to");
      if (made.state.toLowerCase() !== "running")
        throw new ProviderError("the backend made a sandbox that does not run");
      signal.throwIfAborted();
      this.#closed.signal.throwIfAborted();
      this.#connect(runtimeId, spec).watchExpiry(spec.expiresInMs);
      const image = imageOf(made) ?? spec.image;
      this.#images.set(runtimeId, image);
      return image;
    } catch (error) {
      if (isRefused) throw error;
      using deadline = deadlineAfter(undoMs);
      await this.#end(runtimeId, deadline).catch((undoError: unknown) => {
        // Its label is there, so that the inventory shows it and the next destroy tries again.
        this.#logger.warn(
          { err: undoError, runtime_id: runtimeId },
          "a failed spawn could not be undone at the backend",
        );
      });
      if (!isAnswered) this.#unanswered.add(runtimeId);
      throw error;
    }
  }

  async inventory(options: CallOptions): Promise<InventoryEntry[]> {
    const before = [...this.#connected];
    const entries = new Map<RuntimeId, InventoryEntry>();
    await this.#eachListed(options, ({ labels: written = {}, state, id }) => {
      const labels = this.#labels.read(written);
      if (labels === undefined || labels.runtimeId !== id) return;
      const { runtimeId, sandboxId, note } = labels;
      const imageResolved = this.#images.get(runtimeId);
      entries.set(runtimeId, {
        runtimeId,
        state: state.toLowerCase() === "running" ? "running" : "dead",
        ...(sandboxId === undefined ? {} : { sandboxId }),
        ...(note === undefined
          ? {}
          : { note: { ...note, ...(imageResolved === undefined ? {} : { imageResolved }) } }),
      });
    });
    // Who is missing in the list is asked for by name: lists may be behind.
    for (const [runtimeId, sandbox] of before) {
      if (entries.has(runtimeId) || this.#connected.get(runtimeId) !== sandbox) continue;
      if (await abortable(sandbox.confirm(), options.signal))
        entries.set(runtimeId, { runtimeId, state: "running" });
    }
    return [...entries.values()];
  }

  async adopt(runtimeId: RuntimeId, options: CallOptions): Promise<void> {
    options.signal.throwIfAborted();
    if (this.#connected.has(runtimeId)) return;
    const known = async (error: unknown) =>
      (await this.#calls.hiddenBy(error, options)) ??
      (isRefusal(error, 404, 410) ? gone(runtimeId) : undefined);
    const request = { method: "GET" as const, path: ["sandboxes", runtimeId], known };
    const found = await this.#calls.read("look for a sandbox", SandboxAnswer, request, options);
    const labels = this.#labels.read(found.labels ?? {});
    if (labels?.runtimeId !== runtimeId || found.id !== runtimeId || found.state.toLowerCase() !== "running")
      throw gone(runtimeId);
    this.#closed.signal.throwIfAborted();
    if (this.#connected.has(runtimeId)) return;
    this.#connect(runtimeId, { ...labels.start, ownerId: labels.note?.ownerId });
    const image = imageOf(found);
    if (image !== undefined) this.#images.set(runtimeId, image);
  }

  async destroy(runtimeId: RuntimeId, options: CallOptions): Promise<void> {
    const making = this.#making.get(runtimeId);
    if (making !== undefined) {
      making.stop.abort(new RuntimeGone(`runtime ${runtimeId} was destroyed while it was made`));
      await abortable(making.done.then(ignoreOutcome, ignoreOutcome), options.signal);
    }
    const connected = this.#connected.get(runtimeId);
    this.#connected.delete(runtimeId);
    this.#images.delete(runtimeId);
    await connected?.end();
    for (const pauseMs of this.#unanswered.has(runtimeId) ? lostSpawnLooksMs : [0]) {
      if (pauseMs > 0) await abortable(this.#pause(pauseMs), options.signal);
      await this.#end(runtimeId, options);
    }
    this.#unanswered.delete(runtimeId);
  }

  sandbox(runtimeId: RuntimeId): SandboxOperations {
    return this.#find(runtimeId);
  }

  async logs(runtimeId: RuntimeId, options: { lines: number }): Promise<string[]> {
    return this.#find(runtimeId).logs(options.lines);
  }

  onExit(listener: (runtimeId: RuntimeId, reason: string) => void): () => void {
    const own = (runtimeId: RuntimeId, reason: string) => listener(runtimeId, reason);
    this.#exitListeners.add(own);
    return () => this.#exitListeners.delete(own);
  }

  /** Lets go of every runtime without ending it. */
  async [Symbol.asyncDispose](): Promise<void> {
    this.#closed.abort(new RuntimeGone("the service is stopping"));
    this.#poll?.cancel();
    this.#exitListeners.clear();
    for (const { stop } of this.#making.values()) stop.abort(new RuntimeGone("the service is stopping"));
    await Promise.allSettled([...this.#making.values()].map(({ done }) => done));
    for (const sandbox of this.#connected.values()) sandbox.letGo();
    this.#connected.clear();
    this.#client[Symbol.dispose]();
  }

  #learn(told: readonly string[]): void {
    this.#has.clear();
    this.#capabilities.clear();
    for (const each of always) this.#capabilities.add(each);
    for (const each of backendCapabilities) {
      if (!told.includes(each)) continue;
      this.#has.add(each);
      const capability = announced[each];
      if (capability !== undefined) this.#capabilities.add(capability);
    }
  }

  #connect(
    runtimeId: RuntimeId,
    spec: {
      user?: string | undefined;
      workdir?: string | undefined;
      ownerId?: string | undefined;
    },
  ): CustomSandbox {
    const sandbox: CustomSandbox = new CustomSandbox({
      runtimeId,
      calls: this.#calls,
      clock: this.#clock,
      ringBytes: this.#ringBytes,
      silenceMs: this.#silenceMs,
      user: spec.user,
      workdir: spec.workdir,
      ownerId: spec.ownerId ?? "",
      has: (capability) => this.#has.has(capability),
      onGone: (reason) => this.#onGone(runtimeId, sandbox, reason),
      onExpired: () => void this.#expire(runtimeId, sandbox),
    });
    this.#connected.set(runtimeId, sandbox);
    this.#watch();
    return sandbox;
  }

  async #expire(runtimeId: RuntimeId, sandbox: CustomSandbox): Promise<void> {
    this.#onGone(runtimeId, sandbox, "its time was over");
    using deadline = deadlineAfter(undoMs);
    await this.#end(runtimeId, deadline).catch((error: unknown) => {
      this.#logger.warn(
        { err: error, runtime_id: runtimeId },
        "a sandbox whose time is over could not be ended",
      );
    });
  }

  #onGone(runtimeId: RuntimeId, sandbox: CustomSandbox, reason: string): void {
    if (this.#connected.get(runtimeId) !== sandbox) return;
    this.#connected.delete(runtimeId);
    this.#images.delete(runtimeId);
    void sandbox.end();
    for (const listener of this.#exitListeners) listener(runtimeId, reason);
  }

  /** Looks for the sandboxes that ended by themselves, with one list for all, while there are any. */
  #watch(): void {
    if (this.#poll !== undefined || this.#closed.signal.aborted) return;
    this.#poll = this.#clock.setTimer(this.#pollMs, () => {
      void this.#lookAtAll()
        .catch(ignoreOutcome)
        .finally(() => {
          this.#poll = undefined;
          if (this.#connected.size > 0) this.#watch();
        });
    });
  }

  async #lookAtAll(): Promise<void> {
    const connected = [...this.#connected.values()];
    const running = new Set<string>();
    await this.#eachListed({ signal: this.#closed.signal }, ({ id, state }) => {
      if (state.toLowerCase() === "running") running.add(id);
    });
    // One after the other: a backend whose list is empty by mistake is not asked for all of them at once.
    for (const sandbox of connected) if (!running.has(sandbox.runtimeId)) await sandbox.confirm();
  }

  /** What the backend says beyond what is asked of each is not kept: it may be anything. */
  async #eachListed(options: CallOptions, each: (sandbox: Static<typeof SandboxAnswer>) => void) {
    const request = {
      method: "GET" as const,
      path: ["sandboxes"],
      query: { installation: this.#instanceId },
    };
    let count = 0;
    const counted = (sandbox: Static<typeof SandboxAnswer>) => {
      count += 1;
      if (count > sandboxesAtMost) throw new Unreadable(`it has more than ${sandboxesAtMost} sandboxes`);
      each(sandbox);
    };
    const list = {
      ...{ field: "sandboxes", schema: SandboxAnswer, thingAtMost: sandboxAtMost },
      ...{ taker: ownTurns, each: counted },
    };
    await this.#calls.readEach("list sandboxes", list, request, options);
  }

  async #end(runtimeId: RuntimeId, options: CallOptions): Promise<void> {
    let isNone = false;
    const known = async (error: unknown) => {
      const hidden = await this.#calls.hiddenBy(error, options);
      isNone = hidden === undefined && isRefusal(error, 404, 410);
      return hidden;
    };
    const request = { method: "DELETE" as const, path: ["sandboxes", runtimeId], known };
    await this.#calls.tell("end a sandbox", request, options).catch((error: unknown) => {
      if (!isNone) throw error;
    });
  }

  #find(runtimeId: RuntimeId): CustomSandbox {
    const connected = this.#connected.get(runtimeId);
    if (connected === undefined) throw gone(runtimeId);
    return connected;
  }

  #pause(ms: number): Promise<void> {
    return new Promise((resolve) => this.#clock.setTimer(ms, resolve));
  }
}

/** What a backend may refuse of a sandbox beside its image. */
function placeOf({ user, workdir }: RuntimeSpec): string {
  const asUser = user === undefined ? "" : `, for user "${user}"`;
  const inFolder = workdir === undefined ? "" : `, in working directory "${workdir}"`;
  return asUser + inFolder;
}

function imageOf({ image }: Static<typeof SandboxAnswer>): string | undefined {
  return image !== undefined && imageName.test(image) ? image : undefined;
}

function gone(runtimeId: RuntimeId): RuntimeGone {
  return new RuntimeGone(`runtime ${runtimeId} has ended, or is not connected`);
}
