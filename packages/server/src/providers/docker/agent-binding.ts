import { setTimeout as delay } from "node:timers/promises";
import type { DockerConfig } from "../../config/config.ts";
import type { Logger } from "../../platform/logger.ts";
import {
  BadRequest,
  type CallOptions,
  type ImageConfig,
  NotFound,
  ProviderError,
  RuntimeGone,
  type RuntimeSpec,
} from "../../ports/index.ts";
import type { SharedTable } from "../agent/index.ts";
import { ConnectedRuntime, socketName } from "./connected-runtime.ts";
import { commandCapabilities } from "./container-spec.ts";
import type { Containers } from "./containers.ts";
import type { EngineClient } from "./engine-client.ts";
import type { RuntimeRecord, RuntimeRecords } from "./runtime-records.ts";
import { fileAppears } from "./socket-wait.ts";

/** From the start of a container to its agent's first answer. */
export const agentTimeoutMs = 20_000;
const agentRetryMs = 20;
const workspace = "/workspace";

export interface AgentBindingParts {
  config: DockerConfig;
  /** Output kept for each command; undefined: the agent's own default. */
  ringBytes: number | undefined;
  engine: EngineClient;
  containers: Containers;
  records: RuntimeRecords;
  watches: SharedTable;
  logger: Logger;
}

/** Waits for the agent of a container that was started, and tells it whose it is. */
export class AgentBinding {
  readonly #parts: AgentBindingParts;

  constructor(parts: AgentBindingParts) {
    this.#parts = parts;
  }

  /** Waits for the agent's socket, but not for that of a container that has ended. */
  async socketAppears(spec: RuntimeSpec, container: string, { signal }: CallOptions): Promise<void> {
    const { records, containers } = this.#parts;
    const over = new AbortController();
    const either = AbortSignal.any([signal, over.signal]);
    const ended = async () => {
      // Nearly always the socket is there at once, and nobody need ask the engine.
      await delay(100, undefined, { signal: either });
      const reason = await containers.endReason(container, { withinMs: agentTimeoutMs, signal: either });
      throw await this.#agentFailed(spec, container, reason ?? "no socket appeared", either);
    };
    try {
      await Promise.race([fileAppears(records.socketFolder(spec.runtimeId), socketName, either), ended()]);
    } finally {
      over.abort(new Error("the wait for the agent's socket is over"));
    }
  }

  /** @param options.save writes the record down, with the socket that was found. */
  async bind(
    spec: RuntimeSpec,
    {
      record,
      container,
      image,
      save,
      signal,
    }: {
      record: RuntimeRecord;
      container: string;
      image: ImageConfig;
      save: (socket: RuntimeRecord["socket"]) => Promise<void>;
    } & CallOptions,
  ): Promise<ConnectedRuntime> {
    const { engine, records, watches, logger } = this.#parts;
    const runtime = await ConnectedRuntime.open({ record, records, container, engine, watches, logger });
    try {
      await Promise.all([this.#configure(runtime, spec, image, signal), save(runtime.socket)]);
      return runtime;
    } catch (error) {
      await runtime[Symbol.asyncDispose]();
      throw error;
    }
  }

  async #configure(
    runtime: ConnectedRuntime,
    spec: RuntimeSpec,
    image: ImageConfig,
    signal: AbortSignal,
  ): Promise<void> {
    const { config, containers, ringBytes } = this.#parts;
    // The root directory is what engines say for "no working directory".
    const imageWorkdir = image.workdir === "/" ? undefined : image.workdir;
    const workdir = spec.workdir ?? imageWorkdir;
    const user = spec.user ?? (config.user || image.user);
    const request = {
      sandboxId: spec.sandboxId,
      env: { ...image.env, ...spec.env },
      ...(user === undefined ? {} : { user }),
      ...(workdir === undefined ? {} : { workdir }),
      expiresInMs: spec.expiresInMs,
      execCaps: commandCapabilities(config),
      ...(ringBytes === undefined ? {} : { ringBytes }),
    };
    for (;;) {
      try {
        await runtime.client.configure(request, { signal });
        break;
      } catch (error) {
        signal.throwIfAborted();
        if (!(error instanceof RuntimeGone)) throw error;
        // Either the agent does not listen yet or the container has ended.
        const reason = await containers.endReason(runtime.container, { withinMs: agentRetryMs, signal });
        if (reason !== undefined) throw await this.#agentFailed(spec, runtime.container, reason, signal);
      }
    }
    // /workspace is in every sandbox, whatever its working directory.
    if (workdir === undefined || workdir === workspace) return;
    await runtime.client.files.mkdir(workspace, { parents: true, signal }).catch((error) => {
      if (config.readOnlyRootfs) return;
      if (!(error instanceof NotFound)) throw error;
      throw new BadRequest(`the image has a symlink at ${workspace} that leads nowhere`, { cause: error });
    });
  }

  async #agentFailed(
    spec: RuntimeSpec,
    container: string,
    reason: string,
    signal: AbortSignal,
  ): Promise<ProviderError> {
    const lines = await this.#parts.containers.logs(container, { lines: 20, signal }).catch(() => []);
    return new ProviderError(`the agent of sandbox ${spec.sandboxId} did not come up: ${reason}`, {
      cause: new Error(lines.join("\n")),
    });
  }
}
