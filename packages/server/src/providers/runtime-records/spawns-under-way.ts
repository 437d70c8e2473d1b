import { abortable } from "../../platform/abortable.ts";
import type { CallOptions, RuntimeId, SpawnedRuntime } from "../../ports/index.ts";

/** Spawns of this process that have not ended: a second one of the same runtime is the first one, and ends with it. */
export class SpawnsUnderWay {
  readonly #spawns = new Map<RuntimeId, Promise<SpawnedRuntime>>();

  run(
    runtimeId: RuntimeId,
    { signal }: CallOptions,
    spawn: () => Promise<SpawnedRuntime>,
  ): Promise<SpawnedRuntime> {
    const known = this.#spawns.get(runtimeId);
    if (known !== undefined) return abortable(known, signal);
    const spawned = spawn().finally(() => this.#spawns.delete(runtimeId));
    this.#spawns.set(runtimeId, spawned);
    return spawned;
  }
}
