import { type CallOptions, Unavailable } from "../../ports/index.ts";
import { Containers } from "./containers.ts";
import { EngineClient } from "./engine-client.ts";
import { isRefusal } from "./engine-errors.ts";
import { VolumeList } from "./engine-shapes.ts";
import { type EnginePatience, EngineSilent } from "./engine-waits.ts";
import { agentVolume, labelNames, shortInstance } from "./labels.ts";

/** The containers of one installation, found without its data directory. */
export interface OrphanedContainers {
  ids: string[];
  /** Removes the volumes with its agents too. */
  end(): Promise<void>;
}

/**
 * @param instance its name, or the whole id.
 * @returns none where no engine is.
 * @throws ProviderError when the engine refuses; Unavailable when it does not answer.
 */
export async function orphanedContainers(
  instance: string,
  options: CallOptions & { socket: string; tlsDir?: string; patience?: EnginePatience },
): Promise<OrphanedContainers> {
  using engine = new EngineClient(options);
  const ids = await idsOf(engine, shortInstance(instance), options);
  return {
    ids,
    end: async () => {
      using engine = new EngineClient(options);
      const containers = new Containers({ engine });
      for (const id of ids) {
        await engine.waits.awake(options);
        await containers.remove(id, options);
      }
      await removeAgentVolumes(engine, shortInstance(instance), options);
    },
  };
}

/** Those that nobody uses; without an engine there are none. */
async function removeAgentVolumes(
  engine: EngineClient,
  name: string,
  { signal }: CallOptions,
): Promise<void> {
  try {
    const query = { filters: JSON.stringify({ name: [agentVolume(name, "")] }) };
    const { Volumes } = await engine.call({ method: "GET", path: "/volumes", query, signal }, VolumeList);
    for (const { Name } of Volumes ?? [])
      if (Name.startsWith(agentVolume(name, "")))
        await engine.send({ method: "DELETE", path: `/volumes/${encodeURIComponent(Name)}`, signal });
  } catch (error) {
    if (isRefusal(error) || (error instanceof Unavailable && !(error instanceof EngineSilent))) return;
    throw error;
  }
}

async function idsOf(engine: EngineClient, name: string, options: CallOptions): Promise<string[]> {
  try {
    await engine.waits.awake(options);
    const found = await new Containers({ engine }).listAll(options);
    return found
      .filter(({ Labels }) => shortInstance(Labels[labelNames.instance] ?? "") === name)
      .map(({ Id }) => Id);
  } catch (error) {
    if (error instanceof Unavailable && !(error instanceof EngineSilent)) return [];
    throw error;
  }
}
