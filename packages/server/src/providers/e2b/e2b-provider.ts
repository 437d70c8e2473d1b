import type { Capability } from "@alcove/wire";
import { abortable, ignoreOutcome } from "../../platform/abortable.ts";
import { deadlineAfter } from "../../platform/deadline.ts";
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
} from "../../ports/index.ts";
import { ofInstallation, ofRuntime, RuntimeLabels, SpawnsUnderWay } from "../runtime-records/index.ts";
import { AnswerBounds } from "./answer-bounds.ts";
import { E2bCalls } from "./e2b-calls.ts";
import type { E2bConfig } from "./e2b-config.ts";
import { E2bSandbox } from "./e2b-sandbox.ts";
import { Failures, isInvalid, isMissing } from "./failures.ts";

import { type Access, type E2bPackage, loadPackage, oldestEnvd, type SandboxInfo } from "./package.ts";
import { refuseNumericUser } from "./program-runner.ts";
import { RefusedRedirects } from "./refused-redirects.ts";
import { RetryAfters } from "./retry-afters.ts";

const capabilities: readonly Capability[] = [
  "spawn",
  "exec",
  "exec_stream",
  "files",
  "console",
  "health",
  "runtime_inventory",
  "pty",
  "signals",
  "reattach",
  "watch",
  "stats",
  "images",
  "pty_eof",
  "pty_interrupt",
  "file_modes",
  "archives",
];
const undoMs = 20_000;
/** What is asked of a sandbox that runs, so that its time is not made longer. */
const noLongerMs = 1_000;
/** When a create whose answer was lost is looked for by its label: it may still be carried out. */
const lostCreateLooksMs = [0, 500, 1_500];

/**
 * Sandboxes of a hosted service, through its official package. A runtime is a sandbox there that carries our labels: being
 * made (`#making`), connected (`#connected`), or known from the service's list alone.
 */
export class E2bProvider implements RuntimeProvider {
  readonly name = "e2b";
  readonly capabilities: ReadonlySet<Capability> = new Set(capabilities);
  readonly defaultImage: string;
  readonly place: string;
  readonly #config: E2bConfig;
  readonly #instanceId: string;
  readonly #labels: RuntimeLabels;
  readonly #ringBytes: number | undefined;
  readonly #clock: Clock;
  readonly #logger: Logger;
  readonly #retryAfters = new RetryAfters();
  readonly #refusedRedirects = new RefusedRedirects();
  readonly #answerBounds = new AnswerBounds();
  readonly #calls: E2bCalls;
  readonly #spawns = new SpawnsUnderWay();
  readonly #making = new Map<RuntimeId, { done: Promise<unknown>; stop: AbortController }>();
  /** Runtimes whose create had no answer: it may be carried out later. */
  readonly #unanswered = new Set<RuntimeId>();
  readonly #connected = new Map<RuntimeId, E2bSandbox>();
  readonly #exitListeners = new Set<(runtimeId: RuntimeId, reason: string) => void>();
  /** What opens each sandbox, by its name there. */
  readonly #tokens = new Map<string, string>();
  #loading: Promise<E2bPackage> | undefined;
  #closed = false;

  constructor(options: {
    config: E2bConfig;
    instanceId: string;
    /** Signs what labels say of a sandbox. */
    noteKey: Uint8Array;
    ringBytes?: number;
    clock: Clock;
    logger: Logger;
  }) {
    this.#config = options.config;
    this.#instanceId = options.instanceId;
    this.#labels = new RuntimeLabels({ installation: options.instanceId, key: options.noteKey });
    this.#ringBytes = options.ringBytes;
    this.#clock = options.clock;
    this.#logger = options.logger;
    this.defaultImage = options.config.defaultImage;
    const { apiUrl, domain, apiKey } = options.config;
    this.place = `${apiUrl || `https://api.${domain}`} (key ${fingerprint(apiKey, options.noteKey)})`;
    const secrets = () => [options.config.apiKey, ...this.#tokens.values()];
    const failures = new Failures({ retryAfters: this.#retryAfters, secrets });
    this.#calls = new E2bCalls({ timeoutMs: options.config.timeoutMs, failures });
  }

  async check(options: CallOptions): Promise<ProviderCheck> {
    const notes = [
      "sandboxes run on another company's machines and cost money there; memory and processors are the template's",
    ];
    if (this.#config.apiKey === "")
      return {
        healthy: false,
        error: "no key: set providers.e2b.api_key or providers.e2b.api_key_file",
        notes,
      };
    try {
      await this.#list(ofInstallation(this.#instanceId), options);
      return { healthy: true, notes };
    } catch (error) {
      return { healthy: false, error: messageOf(error), notes };
    }
  }

  settings(): Record<string, unknown> {
    return {
      isolation: "hosted",
      domain: this.#config.domain,
      network_mode: this.#config.networkMode,
      max_lifetime_s: Math.floor(this.#config.maxLifetimeMs / 1_000),
    };
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
    if (this.#connected.has(runtimeId)) return { image: spec.image };
    this.#refuse(spec);
    const stop = new AbortController();
    const cut = () => stop.abort(options.signal.reason);
    options.signal.addEventListener("abort", cut, { once: true });
    // It goes on when its caller leaves, until it has undone itself: what was asked of the service may be carried out.
    const done = this.#make(spec, {
      signal: stop.signal,
      ...(options.onStage && { onStage: options.onStage }),
    }).finally(() => {
      options.signal.removeEventListener("abort", cut);
      this.#making.delete(runtimeId);
    });
    this.#making.set(runtimeId, { done, stop });
    await abortable(done, options.signal);
    return { image: spec.image };
  }

  #refuse(spec: RuntimeSpec): void {
    refuseNumericUser(spec.user);
    if (spec.network === "host")
      throw new BadRequest("provider e2b has no host whose network a sandbox could share; leave network out");
    if (spec.network === "outbound" && this.#config.networkMode === "none")
      throw new BadRequest(
        "provider e2b gives sandboxes no network here: providers.e2b.network_mode is none, and a request can only tighten it",
      );
  }

  async #make(spec: RuntimeSpec, options: SpawnOptions): Promise<void> {
    const startedAt = performance.now();
    const lifetimeMs = Math.min(spec.expiresInMs ?? this.#config.maxLifetimeMs, this.#config.maxLifetimeMs);
    const access = await this.#create(spec, Math.max(1_000, lifetimeMs));
    options.onStage?.("create", performance.now() - startedAt);
    let sandbox: E2bSandbox | undefined;
    try {
      options.signal.throwIfAborted();
      refuseOldEnvd(access, spec.image);
      sandbox = this.#open(spec.runtimeId, access, spec);
      await sandbox.furnish(options);
      options.signal.throwIfAborted();
      if (this.#closed) throw new RuntimeGone("the service is stopping");
      this.#connected.set(spec.runtimeId, sandbox);
      sandbox.watchExpiry(lifetimeMs);
    } catch (error) {
      await sandbox?.end();
      using deadline = deadlineAfter(undoMs);
      await this.#kill(access.sandboxId, deadline).catch((undoError: unknown) => {
        // Its label is there, so that the inventory shows it and the next destroy tries again.
        this.#logger.warn(
          { err: undoError, runtime_id: spec.runtimeId },
          "a failed spawn could not be undone at e2b",
        );
      });
      throw error;
    }
  }

  async #create(spec: RuntimeSpec, timeoutMs: number): Promise<Access> {
    const e2b = await this.#package();
    const network = spec.network ?? this.#config.networkMode;
    let answered = false;
    const known = async (error: unknown) => {
      answered = isMissing(error) || isInvalid(error);
      if (isMissing(error))
        return new NotFound(
          `template "${spec.image}" is not there for the key of providers.e2b; build it with the tools of e2b, or name another image`,
          { what: "image" },
        );
      if (isInvalid(error))
        return new ProviderError(
          `e2b refused to make a sandbox of template "${spec.image}"; its plan may not allow so long a life: lower providers.e2b.max_lifetime`,
        );
      return undefined;
    };
    try {
      // Not with the caller's signal: a request that is cut may be carried out all the same.
      const access = await this.#calls.run(
        "make a sandbox",
        { signal: new AbortController().signal, known },
        (signal) =>
          e2b.create(spec.image, {
            timeoutMs,
            metadata: this.#labels.of(spec),
            envs: { ...spec.env },
            allowInternetAccess: network === "outbound",
            signal,
          }),
      );
      answered = true;
      return this.#known(access);
    } finally {
      if (!answered) this.#unanswered.add(spec.runtimeId);
    }
  }

  async inventory(options: CallOptions): Promise<InventoryEntry[]> {
    const before = [...this.#connected];
    const entries = new Map<RuntimeId, InventoryEntry>();
    for (const info of await this.#list(ofInstallation(this.#instanceId), options)) {
      const labels = this.#labels.read(info.metadata);
      if (labels === undefined) continue;
      const { runtimeId, sandboxId, note } = labels;
      entries.set(runtimeId, {
        runtimeId,
        state: "running",
        ...(sandboxId === undefined ? {} : { sandboxId }),
        ...(note === undefined ? {} : { note }),
      });
    }
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
    const [found] = await this.#list(ofRuntime(this.#instanceId, runtimeId), options);
    if (found === undefined) throw gone(runtimeId);
    const e2b = await this.#package();
    const known = async (error: unknown) => (isMissingOf(error) ? gone(runtimeId) : undefined);
    const access = await this.#calls.run("connect to a sandbox", { ...options, known }, (signal) =>
      e2b.connect(found.sandboxId, { timeoutMs: noLongerMs, signal }),
    );
    const { start, note } = this.#labels.read(found.metadata) ?? {};
    const sandbox = this.#open(runtimeId, this.#known(access), { ...start, ownerId: note?.ownerId });
    if (this.#connected.has(runtimeId) || this.#closed) sandbox.letGo();
    else {
      this.#connected.set(runtimeId, sandbox);
      sandbox.watchExpiry(Math.max(0, found.endAt.getTime() - this.#clock.now().getTime()));
    }
  }

  async destroy(runtimeId: RuntimeId, options: CallOptions): Promise<void> {
    const making = this.#making.get(runtimeId);
    if (making !== undefined) {
      making.stop.abort(new RuntimeGone(`runtime ${runtimeId} was destroyed while it was made`));
      await abortable(making.done.then(ignoreOutcome, ignoreOutcome), options.signal);
    }
    const connected = this.#connected.get(runtimeId);
    this.#connected.delete(runtimeId);
    if (connected !== undefined) {
      await connected.end();
      await this.#kill(connected.hostedId, options);
    }
    if (connected !== undefined && !this.#unanswered.has(runtimeId)) return;
    for (const pauseMs of this.#unanswered.has(runtimeId) ? lostCreateLooksMs : [0]) {
      await abortable(this.#pause(pauseMs), options.signal);
      for (const { sandboxId } of await this.#list(ofRuntime(this.#instanceId, runtimeId), options))
        await this.#kill(sandboxId, options);
    }
    this.#unanswered.delete(runtimeId);
  }

  sandbox(runtimeId: RuntimeId): SandboxOperations {
    const connected = this.#connected.get(runtimeId);
    if (connected === undefined) throw gone(runtimeId);
    return connected;
  }

  async logs(runtimeId: RuntimeId, options: { lines: number }): Promise<string[]> {
    const connected = this.#connected.get(runtimeId);
    if (connected === undefined) throw gone(runtimeId);
    return connected.logs(options.lines);
  }

  onExit(listener: (runtimeId: RuntimeId, reason: string) => void): () => void {
    const own = (runtimeId: RuntimeId, reason: string) => listener(runtimeId, reason);
    this.#exitListeners.add(own);
    return () => this.#exitListeners.delete(own);
  }

  /** Lets go of every runtime without ending it. */
  async [Symbol.asyncDispose](): Promise<void> {
    this.#closed = true;
    this.#exitListeners.clear();
    for (const { stop } of this.#making.values()) stop.abort(new RuntimeGone("the service is stopping"));
    await Promise.allSettled([...this.#making.values()].map(({ done }) => done));
    for (const sandbox of this.#connected.values()) sandbox.letGo();
    this.#connected.clear();
    this.#retryAfters[Symbol.dispose]();
    this.#refusedRedirects[Symbol.dispose]();
    this.#answerBounds[Symbol.dispose]();
  }

  #open(
    runtimeId: RuntimeId,
    access: Access,
    spec: { user?: string | undefined; workdir?: string | undefined; ownerId?: string | undefined },
  ): E2bSandbox {
    if (this.#e2b === undefined) throw new Error("the package e2b is not loaded");
    const sandbox: E2bSandbox = new E2bSandbox({
      e2b: this.#e2b,
      access,
      calls: this.#calls,
      clock: this.#clock,
      ringBytes: this.#ringBytes,
      maxLifetimeMs: this.#config.maxLifetimeMs,
      user: spec.user,
      workdir: spec.workdir,
      taker: { principal: spec.ownerId || `sandbox ${runtimeId}`, owner: runtimeId },
      onGone: (reason) => this.#onGone(runtimeId, sandbox, reason),
    });
    return sandbox;
  }

  #onGone(runtimeId: RuntimeId, sandbox: E2bSandbox, reason: string): void {
    if (this.#connected.get(runtimeId) !== sandbox) return;
    this.#connected.delete(runtimeId);
    this.#tokens.delete(sandbox.hostedId);
    void sandbox.end();
    for (const listener of this.#exitListeners) listener(runtimeId, reason);
  }

  async #list(metadata: Record<string, string>, options: CallOptions): Promise<SandboxInfo[]> {
    const e2b = await this.#package();
    const listed = await this.#calls.run("list sandboxes", options, (signal) =>
      e2b.list(metadata, { signal }),
    );
    // The filter of the service is not relied on: what is not ours must not be ended or entered.
    return listed.filter((info) =>
      Object.entries(metadata).every(([key, value]) => info.metadata[key] === value),
    );
  }

  async #kill(hostedId: string, options: CallOptions): Promise<void> {
    const e2b = await this.#package();
    await this.#calls.run("end a sandbox", options, (signal) => e2b.kill(hostedId, { signal }));
    this.#tokens.delete(hostedId);
  }

  #known(access: Access): Access {
    if (access.envdAccessToken !== undefined) this.#tokens.set(access.sandboxId, access.envdAccessToken);
    return access;
  }

  #e2b: E2bPackage | undefined;

  /** Loaded when it is first needed, so that services without this provider never are. */
  async #package(): Promise<E2bPackage> {
    this.#loading ??= loadPackage(this.#config).catch((error: unknown) => {
      this.#loading = undefined;
      throw new ProviderError(`the package e2b cannot be loaded: ${messageOf(error)}`, { cause: error });
    });
    const e2b = await this.#loading;
    if (this.#e2b === undefined) {
      this.#retryAfters.listen();
      this.#refusedRedirects.listen();
      this.#answerBounds.listen();
    }
    this.#e2b = e2b;
    return e2b;
  }

  #pause(ms: number): Promise<void> {
    return new Promise((resolve) => void this.#clock.setTimer(ms, resolve));
  }
}

/** What is called otherwise is no version, and told to nobody: it may be of any length. */
const versionName = /^\d{1,9}\.[\w.+-]{1,50}$/;

function refuseOldEnvd({ envdVersion }: Access, image: string): void {
  if (!versionName.test(envdVersion))
    throw new ProviderError(
      `e2b told no version of the envd of template "${image}" that could be understood`,
    );
  const numbers = envdVersion.split(".").map(Number);
  const oldest = oldestEnvd.split(".").map(Number);
  const at = oldest.findIndex((number, index) => (numbers[index] ?? 0) !== number);
  if (at >= 0 && !((numbers[at] ?? 0) > (oldest[at] ?? 0)))
    throw new ProviderError(
      `template "${image}" has envd ${envdVersion}, and this needs ${oldestEnvd} or newer: build the template anew`,
    );
}

function isMissingOf(error: unknown): boolean {
  return isMissing(error) || (error instanceof Error && error.name === "SandboxNotFoundError");
}

function gone(runtimeId: RuntimeId): RuntimeGone {
  return new RuntimeGone(`runtime ${runtimeId} is not running`);
}
