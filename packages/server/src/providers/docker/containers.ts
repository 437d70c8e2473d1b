import { setTimeout as delay } from "node:timers/promises";
import { ByteBlocks } from "../../platform/byte-blocks.ts";
import { type CallOptions, ProviderError, RuntimeGone } from "../../ports/index.ts";
import { ContainerListReader, type ListedContainer } from "./container-list.ts";
import type { EngineCall, EngineClient } from "./engine-client.ts";
import { asProviderError, isRefusal } from "./engine-errors.ts";
import { Anything, ContainerInspection } from "./engine-shapes.ts";
import { ownedBy, ownedByAny } from "./labels.ts";
import { Demultiplexer } from "./multiplexed-stream.ts";

/** A removal the engine failed at, a busy mount for instance, is tried this often, waiting longer each time. */
const removeAttempts = 4;
const removePauseMs = 100;
/** Longest start there is, on a busy machine. */
const startMs = 120_000;
/** The engine reads every file of every container for their sizes. */
const sizesMs = 60_000;
/** Of a container's log: its own bound is a sixteenth of it. */
const longestLogBytes = 16 * 1024 * 1024;

/** The engine's containers, as far as sandboxes need them. */
export class Containers {
  readonly #engine: EngineClient;

  constructor(options: { engine: EngineClient }) {
    this.#engine = options.engine;
  }

  list(instanceId: string, options: CallOptions) {
    return this.#list(ownedBy(instanceId), options);
  }

  /** Those of every installation. */
  listAll(options: CallOptions) {
    return this.#list(ownedByAny, options);
  }

  /** The same with what their writable layers contain, for which the engine reads all of each. */
  sizes(instanceId: string, options: CallOptions) {
    return this.#list(ownedBy(instanceId), options, { query: { size: "true" }, withinMs: sizesMs });
  }

  async #list(
    filters: string,
    { signal }: CallOptions,
    more: Pick<EngineCall, "query" | "withinMs"> = {},
  ): Promise<ListedContainer[]> {
    const query = { all: "true", filters, ...more.query };
    const call = { ...more, method: "GET", path: "/containers/json", query, signal } as const;
    try {
      return await this.#engine.read(call, new ContainerListReader());
    } catch (error) {
      throw asProviderError("list containers", error);
    }
  }

  /** @returns undefined when there is no such container. */
  async inspect(container: string, { signal }: CallOptions): Promise<ContainerInspection | undefined> {
    try {
      return await this.#engine.call(
        { method: "GET", path: `/containers/${container}/json`, signal },
        ContainerInspection,
      );
    } catch (error) {
      if (isRefusal(error, 404)) return undefined;
      throw asProviderError("look a container up", error);
    }
  }

  /** Starts it. One that runs already is fine. Given up only when the engine answers nobody. */
  async start(container: string, options: CallOptions): Promise<void> {
    using awake = this.#engine.waits.whileAwake(options.signal);
    const { signal } = awake;
    try {
      const path = `/containers/${container}/start`;
      await this.#engine.send({ method: "POST", path, signal, withinMs: startMs });
    } catch (error) {
      throw asProviderError("start the container", error);
    }
  }

  /** Given up only when the engine answers nobody: it goes on with it in any case. */
  async rename(container: string, name: string, options: CallOptions): Promise<void> {
    using awake = this.#engine.waits.whileAwake(options.signal);
    const { signal } = awake;
    try {
      const path = `/containers/${container}/rename`;
      await this.#engine.send({ method: "POST", path, query: { name }, signal });
    } catch (error) {
      throw asProviderError("rename a container", error);
    }
  }

  /** Kills and removes it with its anonymous volumes. One that is not there, or is going already, is fine. */
  async remove(container: string, { signal }: CallOptions): Promise<void> {
    for (let attempt = 1; ; attempt++) {
      try {
        return await this.#engine.send({
          method: "DELETE",
          path: `/containers/${container}`,
          query: { force: "true", v: "true" },
          signal,
        });
      } catch (error) {
        if (isRefusal(error, 404)) return;
        if (isRefusal(error, 409)) return this.#removed(container, { signal });
        if (!isRefusal(error) || attempt >= removeAttempts)
          throw asProviderError("remove the container", error);
        await delay(removePauseMs * 2 ** attempt, undefined, { signal }).catch(() => signal.throwIfAborted());
      }
    }
  }

  /** Waits for a removal that somebody else began. */
  async #removed(container: string, options: CallOptions): Promise<void> {
    await this.#wait(container, "removed", options);
  }

  /** Waits until it does not run. @returns why it ended; undefined when it still runs after `withinMs`. */
  async endReason(
    container: string,
    { withinMs, signal }: CallOptions & { withinMs: number },
  ): Promise<string | undefined> {
    const late = AbortSignal.timeout(withinMs);
    try {
      await this.#wait(container, "not-running", { signal: AbortSignal.any([signal, late]) });
    } catch (error) {
      if (late.aborted && !signal.aborted) return undefined;
      throw error;
    }
    const state = (await this.inspect(container, { signal }))?.State;
    if (state === undefined) return "the container was removed";
    const memory = state.OOMKilled ? "; processes in it were killed for want of memory" : "";
    return `the container ended with exit code ${state.ExitCode ?? "unknown"}${memory}`;
  }

  /** Its id and the number of its first process, as the engine sees that. @throws RuntimeGone when it does not run. */
  async firstProcess(container: string, { signal }: CallOptions): Promise<{ id: string; pid: number }> {
    try {
      const path = `/containers/${container}/json`;
      const found = await this.#engine.call({ method: "GET", path, signal }, ContainerInspection);
      const { Running: running, Pid: pid = 0 } = found.State;
      if (!running || pid <= 0) throw new RuntimeGone("the container does not run");
      return { id: found.Id, pid };
    } catch (error) {
      if (isRefusal(error, 404)) throw new RuntimeGone("the container is no longer there", { cause: error });
      throw asProviderError("look at a container", error);
    }
  }

  async #wait(
    container: string,
    condition: "not-running" | "removed",
    { signal }: CallOptions,
  ): Promise<void> {
    try {
      await this.#engine.call(
        {
          method: "POST",
          path: `/containers/${container}/wait`,
          query: { condition },
          signal,
          withinMs: null,
        },
        Anything,
      );
    } catch (error) {
      if (!isRefusal(error, 404)) throw asProviderError("wait for a container", error);
    }
  }

  /** The last lines its first process wrote, newest last. @throws RuntimeGone when there is no such container. */
  async logs(container: string, { lines, signal }: CallOptions & { lines: number }): Promise<string[]> {
    const log = new ByteBlocks();
    const demultiplexer = new Demultiplexer((_stream, data) => log.add(data));
    try {
      const query = { stdout: "true", stderr: "true", tail: String(lines) };
      const stream = await this.#engine.stream({
        method: "GET",
        path: `/containers/${container}/logs`,
        query,
        signal,
      });
      for await (const chunk of stream) {
        demultiplexer.push(chunk);
        if (log.bytes > longestLogBytes)
          throw new ProviderError(
            `the Docker Engine sent more than ${longestLogBytes} bytes of a container's log`,
          );
      }
    } catch (error) {
      if (isRefusal(error, 404)) throw new RuntimeGone("the container is no longer there", { cause: error });
      throw asProviderError("read the container's log", error);
    }
    const text = log.take().toString("utf8");
    return text
      .split(/\r?\n/)
      .filter((line, index, all) => line !== "" || index < all.length - 1)
      .slice(-lines);
  }
}
