import { type CallOptions, Unavailable } from "../../ports/index.ts";
import { Containers } from "./containers.ts";
import { EngineClient } from "./engine-client.ts";
import { labelNames, shortInstance } from "./labels.ts";

/** The containers of one installation, found without its data directory. */
export interface OrphanedContainers {
  ids: string[];
  end(): Promise<void>;
}

/**
 * @param instance its name, or the whole id.
 * @returns none where no engine answers.
 * @throws ProviderError when the engine refuses.
 */
export async function orphanedContainers(
  instance: string,
  options: CallOptions & { socket: string },
): Promise<OrphanedContainers> {
  using engine = new EngineClient({ socket: options.socket });
  const ids = await idsOf(new Containers({ engine }), shortInstance(instance), options);
  return {
    ids,
    end: async () => {
      using engine = new EngineClient({ socket: options.socket });
      const containers = new Containers({ engine });
      for (const id of ids) await containers.remove(id, options);
    },
  };
}

async function idsOf(containers: Containers, name: string, options: CallOptions): Promise<string[]> {
  try {
    const found = await containers.listAll(options);
    return found
      .filter(({ Labels }) => shortInstance(Labels?.[labelNames.instance] ?? "") === name)
      .map(({ Id }) => Id);
  } catch (error) {
    if (error instanceof Unavailable) return [];
    throw error;
  }
}
