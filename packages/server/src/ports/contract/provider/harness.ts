import { expect, type TestContext, vi } from "vitest";
import { randomIds } from "../../../platform/random-ids.ts";
import type {
  ExecEvent,
  ExecExit,
  ExecId,
  ExecSpec,
  ExecView,
  RuntimeId,
  RuntimeProvider,
  RuntimeSpec,
  SandboxId,
  SandboxOperations,
} from "../../index.ts";
import { owedFor } from "./owed-for.ts";

export interface ProviderUnderTest {
  provider: RuntimeProvider;
  /** An image with /bin/sh and busybox's programs. */
  image: string;
  close(): Promise<void>;
  /** A fresh provider object on the same state, as after the service was killed; the old one is not used again. For who announces `adopt`. */
  restart?(): Promise<RuntimeProvider>;
}

export interface Runtime {
  runtimeId: RuntimeId;
  sandboxId: SandboxId;
  /** As its spawn answered it. */
  image: string;
  operations: SandboxOperations;
}

export interface Finished {
  exit: ExecExit;
  stdout: string;
  stderr: string;
}

/** How long one call of a test may take. */
const callMs = 15_000;

/** A fresh deadline, so that a provider that hangs fails the test that asked. */
export const soon = (ms = callMs): { signal: AbortSignal } => ({ signal: AbortSignal.timeout(ms) });

/** Holds the provider under test, what tests spawned, and one sandbox that tests share. */
export class ContractHarness {
  #subject: ProviderUnderTest | undefined;
  #provider: RuntimeProvider | undefined;
  #shared: Runtime | undefined;
  readonly #owned = new Set<RuntimeId>();

  open(subject: ProviderUnderTest): void {
    this.#subject = subject;
    this.#provider = subject.provider;
  }

  async close(): Promise<void> {
    if (this.#subject === undefined) return;
    if (this.#shared !== undefined) await this.provider.destroy(this.#shared.runtimeId, soon(30_000));
    this.#shared = undefined;
    const left = await this.provider.inventory(soon());
    await this.provider[Symbol.asyncDispose]();
    await this.#subject.close();
    expect(left).toEqual([]);
  }

  get provider(): RuntimeProvider {
    if (this.#provider === undefined) throw new Error("the provider under test was not created");
    return this.#provider;
  }

  get image(): string {
    if (this.#subject === undefined) throw new Error("the provider under test was not created");
    return this.#subject.image;
  }

  /** Skips a case that the provider does not owe. */
  skipUnlessOwed(context: TestContext): void {
    for (const capability of owedFor[context.task.name] ?? []) {
      if (!this.provider.capabilities.has(capability)) context.skip(`not announced: ${capability}`);
    }
  }

  spec(change: Partial<RuntimeSpec> = {}): RuntimeSpec {
    return {
      runtimeId: randomIds.runtimeId(),
      sandboxId: randomIds.sandboxId(),
      image: this.image,
      memoryMb: 256,
      vcpus: 1,
      env: {},
      expiresInMs: 600_000,
      metadata: {},
      ...change,
    };
  }

  /** Spawns a sandbox that the end of the test destroys. */
  async spawn(change: Partial<RuntimeSpec> = {}): Promise<Runtime> {
    const spec = this.spec(change);
    this.own(spec.runtimeId);
    const { runtimeId = spec.runtimeId, image } = await this.provider.spawn(spec, soon(30_000));
    this.own(runtimeId);
    return { runtimeId, image, sandboxId: spec.sandboxId, operations: this.provider.sandbox(runtimeId) };
  }

  own(runtimeId: RuntimeId): void {
    this.#owned.add(runtimeId);
  }

  /** The operations of the sandbox that tests share. */
  async shared(): Promise<SandboxOperations> {
    if (this.#shared === undefined) {
      this.#shared = await this.spawn();
      this.#owned.delete(this.#shared.runtimeId);
    }
    return this.provider.sandbox(this.#shared.runtimeId);
  }

  /** Replaces the provider by one that knows only what is on disk. */
  async restart(): Promise<RuntimeProvider> {
    if (this.#subject?.restart === undefined)
      throw new Error("a provider that announces adopt has to be opened again by its test (restart)");
    this.#provider = await this.#subject.restart();
    if (this.#shared !== undefined) await this.provider.adopt(this.#shared.runtimeId, soon());
    return this.provider;
  }

  /** Destroys what the test spawned and finds nothing of it left. */
  async checkNothingLeft(): Promise<void> {
    if (this.#provider === undefined) return;
    const owned = [...this.#owned];
    this.#owned.clear();
    await Promise.all(owned.map((id) => this.provider.destroy(id, soon(30_000))));
    const left = (await this.provider.inventory(soon())).map((entry) => entry.runtimeId);
    expect(left).toEqual(this.#shared === undefined ? [] : [this.#shared.runtimeId]);
  }
}

export function shell(script: string, change: Partial<ExecSpec> = {}): ExecSpec {
  return {
    execId: randomIds.execId(),
    command: script,
    args: [],
    argv: ["/bin/sh", "-c", script],
    env: {},
    stdin: false,
    timeoutMs: 30_000,
    detached: false,
    ...change,
  };
}

export function argv(...words: string[]): ExecSpec {
  return shell(words.join(" "), { argv: words, command: words[0] ?? "", args: words.slice(1) });
}

/** Runs a command to its end. */
export async function run(
  operations: SandboxOperations,
  spec: ExecSpec | string,
  input?: string,
): Promise<Finished> {
  await using view = await operations.execs.start(typeof spec === "string" ? shell(spec) : spec, soon());
  if (input !== undefined) {
    await view.writeStdin(Buffer.from(input));
    await view.closeStdin();
  }
  return await finish(view);
}

/** Reads a view to its end. @throws when it was cut. */
export async function finish(view: ExecView): Promise<Finished> {
  const texts = { stdout: [] as Buffer[], stderr: [] as Buffer[] };
  let exit: ExecExit | undefined;
  for await (const event of view.events) {
    if (event.type === "exit") exit = event.exit;
    else texts[event.stream].push(event.data);
  }
  if (exit === undefined) throw new Error("the output was cut before the exit");
  return {
    exit,
    stdout: Buffer.concat(texts.stdout).toString(),
    stderr: Buffer.concat(texts.stderr).toString(),
  };
}

/** Reads output until it contains `text`. @returns the iterator, to go on with, and what was read. */
export async function readUntil(
  view: ExecView,
  text: string,
): Promise<{ rest: AsyncIterator<ExecEvent>; seen: string }> {
  const rest = view.events[Symbol.asyncIterator]();
  let seen = "";
  while (!seen.includes(text)) {
    const next = await rest.next();
    if (next.done || next.value.type === "exit") {
      throw new Error(`the output ended without ${JSON.stringify(text)}: ${JSON.stringify(seen)}`);
    }
    seen += next.value.data.toString();
  }
  return { rest, seen };
}

/** Waits until `check` no longer throws. */
export function eventually<T>(check: () => Promise<T> | T, timeoutMs = 10_000): Promise<T> {
  return vi.waitFor(check, { timeout: timeoutMs, interval: 20 });
}

export async function collect(body: AsyncIterable<Uint8Array>): Promise<Buffer> {
  const parts: Uint8Array[] = [];
  for await (const part of body) parts.push(part);
  return Buffer.concat(parts);
}

export async function* chunks(...parts: (string | Uint8Array)[]): AsyncGenerator<Uint8Array> {
  for (const part of parts) yield typeof part === "string" ? Buffer.from(part) : part;
}

/** A part of an exec id that a test chose, so that it can look the command up. */
export const freshExecId = (): ExecId => randomIds.execId();
