import type { RuntimeProvider } from "../../src/ports/index.ts";

/** Counts an owner's runtimes at every step of theirs: from before one is made until its destroy has been confirmed. */
export class RuntimeWatch {
  readonly #ownerOf = new Map<string, string>();
  /** The most that one owner ever had at once. Nobody's are not counted. */
  mostOfOwner = 0;

  constructor(provider: Pick<RuntimeProvider, "spawn" | "destroy">) {
    const { spawn, destroy } = provider;
    const count = (runtimeId: string, ownerId: string) => {
      this.#ownerOf.set(runtimeId, ownerId);
      const owned = [...this.#ownerOf.values()].filter((owner) => owner === ownerId).length;
      this.mostOfOwner = Math.max(this.mostOfOwner, owned);
    };
    provider.spawn = function (this: RuntimeProvider, spec, options) {
      if (spec.ownerId) count(spec.runtimeId, spec.ownerId);
      return spawn.call(this, spec, options);
    };
    const gone = (runtimeId: string) => this.#ownerOf.delete(runtimeId);
    provider.destroy = async function (this: RuntimeProvider, runtimeId, options) {
      await destroy.call(this, runtimeId, options);
      gone(runtimeId);
    };
  }
}
