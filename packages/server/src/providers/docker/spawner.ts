import { deadlineAfter } from "../../platform/deadline.ts";
import { stagesOf } from "../../platform/stages.ts";
import {
  type CallOptions,
  type Clock,
  type OnStage,
  type RuntimeSpec,
  Unavailable,
} from "../../ports/index.ts";
import { noteOf } from "../runtime-records/index.ts";
import { type AgentBinding, agentTimeoutMs } from "./agent-binding.ts";
import type { AgentDelivery } from "./agent-delivery.ts";
import type { ConnectedRuntime } from "./connected-runtime.ts";
import type { ContainerMaker } from "./container-maker.ts";
import { resolveImageName } from "./image-reference.ts";
import { containerName } from "./labels.ts";
import { networkFor } from "./network-mode.ts";
import type { OutboundNetworks } from "./outbound-networks.ts";
import type { PreparedContainers } from "./prepared-containers.ts";
import type { RuntimeRecord, RuntimeRecords } from "./runtime-records.ts";

export interface SpawnerParts {
  networkMode: string;
  instanceId: string;
  aliases: Readonly<Record<string, string>>;
  /** Address of the engine. */
  engine: string;
  transport: RuntimeRecord["transport"];
  maker: ContainerMaker;
  delivery: AgentDelivery;
  binding: AgentBinding;
  /** Absent where none are prepared. */
  prepared: Pick<PreparedContainers, "claim"> | undefined;
  records: RuntimeRecords;
  networks: OutboundNetworks;
  clock: Clock;
  newToken: () => string;
}

/** Makes a runtime: of a container that was prepared for whoever comes, or of one that it makes. Undoing what it left half-made is its caller's. */
export class Spawner {
  readonly #parts: SpawnerParts;

  constructor(parts: SpawnerParts) {
    this.#parts = parts;
  }

  async spawn(
    spec: RuntimeSpec,
    { signal, onStage }: CallOptions & { onStage: OnStage },
  ): Promise<{ runtime: ConnectedRuntime; image: string }> {
    const { networks, clock, maker, binding, delivery, prepared } = this.#parts;
    const image = resolveImageName(spec.image, this.#parts.aliases);
    const network = networkFor(this.#parts.networkMode, spec.network);
    const leadsOut = network === "outbound";
    if (leadsOut) await networks.refuseWhenMissing({ signal });
    const record: RuntimeRecord = {
      version: 1,
      instanceId: this.#parts.instanceId,
      runtimeId: spec.runtimeId,
      sandboxId: spec.sandboxId,
      token: this.#parts.newToken(),
      image,
      transport: this.#parts.transport,
      engine: this.#parts.engine,
      createdAt: clock.now().toISOString(),
      sandbox: noteOf(spec),
    };
    const stage = stagesOf(onStage, () => clock.monotonicMs());
    const attach = async () => {
      await networks.attach(spec.runtimeId, { signal });
      stage("network");
    };
    const claimed = await prepared?.claim(spec, { record, network, maker, binding, delivery, signal });
    if (claimed !== undefined) {
      stage("claim");
      try {
        if (leadsOut) await attach();
      } catch (error) {
        await claimed[Symbol.asyncDispose]();
        throw error;
      }
      return { runtime: claimed, image };
    }
    const container = containerName(this.#parts.instanceId, spec.runtimeId);
    const { records } = this.#parts;
    await records.save(record, spec.runtimeId);
    const imageConfig = await maker.create(spec, { container, image, pulls: true, signal });
    signal.throwIfAborted();
    await maker.inspect(container, { image, signal });
    stage("create");
    await maker.start(spec, container, { signal });
    stage("start");
    if (leadsOut) await attach();
    using deadline = deadlineAfter(agentTimeoutMs, signal);
    const inTime = { signal: deadline.signal };
    try {
      if (record.transport === "socket") await binding.socketAppears(spec, container, inTime);
      const runtime = await binding.bind(spec, {
        record,
        container,
        image: imageConfig,
        save: async (socket) => {
          if (socket !== undefined) await records.save({ ...record, socket }, spec.runtimeId);
        },
        ...inTime,
      });
      stage("agent");
      return { runtime, image };
    } catch (error) {
      signal.throwIfAborted();
      if (!deadline.signal.aborted) throw error;
      throw new Unavailable(
        `the agent of sandbox ${spec.sandboxId} did not answer within ${agentTimeoutMs} ms`,
        {
          cause: error,
        },
      );
    }
  }
}
