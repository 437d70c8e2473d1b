import {
  BadRequest,
  type PoolInUse,
  type PoolRules,
  type PoolSlot,
  type RuntimeProvider,
  type RuntimeSpec,
  type SandboxStore,
} from "../../ports/index.ts";
import { workspace } from "../files/paths.ts";
import { workspacePath } from "./workspace.ts";

export interface PoolSettings {
  enabled: boolean;
  maxVms: number;
  maxUsersPerVm: number;
  /** Empty: the provider's default. */
  image: string;
  memoryMb: number;
  vcpus: number;
  overflow: "reject" | "queue";
}

export const userMissing =
  "X-User-ID is missing (on the command line --user-id): in pool mode it says whose a sandbox is";

interface Size {
  memoryMb: number;
  vcpus: number;
}

/** What of a spawn the pool decides. */
interface Wanted {
  image?: string;
  memoryMb?: number;
  vcpus?: number;
  user?: string;
  workdir?: string;
}

/**
 * Pool mode: every sandbox is its user's part of a VM that users share. Which VM, and as whom, the store decides together
 * with the reservation; here is what a part is made of. docs/decisions/pool.md.
 */
export class Pool {
  readonly settings: PoolSettings;
  readonly #shareMb: number;

  /** @param settings are such that each part is large enough for a sandbox: the configuration refuses others. */
  constructor(settings: PoolSettings) {
    this.settings = settings;
    this.#shareMb = Math.floor(settings.memoryMb / settings.maxUsersPerVm);
  }

  get enabled(): boolean {
    return this.settings.enabled;
  }

  get rules(): PoolRules {
    return { maxVms: this.settings.maxVms, maxUsersPerVm: this.settings.maxUsersPerVm };
  }

  /**
   * Fills in what a spawn left out.
   * @param largest what one sandbox can have on this machine; 0: not known.
   * @throws BadRequest for what no part of a VM can be.
   */
  part<W extends Wanted>(
    wanted: W,
    { ownerId, provider, largest }: { ownerId: string; provider: RuntimeProvider; largest: Size },
  ): W {
    const { image, vcpus } = this.settings;
    if (provider.capabilities.has("userspace_isolation"))
      throw new BadRequest(
        `provider "${provider.name}" cannot keep users apart; pool mode takes native or docker`,
      );
    if (ownerId === "") throw new BadRequest(userMissing);
    if (wanted.user)
      throw new BadRequest(`user "${wanted.user}" cannot be chosen: the pool gives each user an id`);
    if (wanted.memoryMb !== undefined && wanted.memoryMb > this.#shareMb)
      throw new BadRequest(
        `memory_mb ${wanted.memoryMb} is more than a user's part of a VM, which is ${this.#shareMb} (pool.memory_mb shared by pool.max_users_per_vm)`,
      );
    if (wanted.vcpus !== undefined && wanted.vcpus > vcpus)
      throw new BadRequest(`vcpus ${wanted.vcpus} is more than a VM has, which is ${vcpus} (pool.vcpus)`);
    return {
      ...wanted,
      ...(image === "" || wanted.image ? {} : { image }),
      memoryMb: wanted.memoryMb ?? Math.min(this.#shareMb, largest.memoryMb || this.#shareMb),
      vcpus: wanted.vcpus ?? Math.min(vcpus, largest.vcpus || vcpus),
      workdir: wanted.workdir ? workspacePath(wanted.workdir) : workspace,
    };
  }

  /** What a provider needs to know of a slot. */
  runtime(slot: PoolSlot, provider: RuntimeProvider): Pick<RuntimeSpec, "slot" | "user"> {
    return {
      slot: {
        ...slot,
        vm: {
          memoryMb: this.settings.memoryMb,
          vcpus: this.settings.vcpus,
          users: this.settings.maxUsersPerVm,
        },
        shareMb: this.#shareMb,
      },
      ...(provider.capabilities.has("users") ? { user: String(slot.uid) } : {}),
    };
  }

  /** @returns undefined while the pool is off. */
  async inUse(store: Pick<SandboxStore, "poolInUse">): Promise<(PoolInUse & PoolRules) | undefined> {
    return this.enabled ? { ...(await store.poolInUse()), ...this.rules } : undefined;
  }
}
