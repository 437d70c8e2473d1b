import { realpath } from "node:fs/promises";
import { basename, join } from "node:path";
import { ProviderError, ResourceLimit, type RuntimeId } from "../../ports/index.ts";
import { findProgram } from "../launcher/index.ts";

/** More machines than any host holds, fewer ids than one container gets. */
const mostJails = 65_536;

/** What one machine's Firecracker is confined to by the jailer. */
export interface Jail {
  jailer: string;
  /** Firecracker's program: the jailer copies it. */
  program: string;
  uid: number;
  /** One for all, to which taps may belong. */
  gid: number;
  /** Its root, below the folder of the machine. */
  inside: string;
}

/** Gives each machine a user of its own. Who has which is written down with the machines: `known` tells it at the first use. */
export class Jails {
  readonly #jailer: string;
  readonly #firecracker: string;
  readonly #uidBase: number;
  readonly #known: () => Promise<ReadonlyMap<RuntimeId, number>>;
  readonly #lent = new Map<number, RuntimeId>();
  #learning: Promise<void> | undefined;

  constructor(options: {
    jailer: string;
    firecracker: string;
    uidBase: number;
    known: () => Promise<ReadonlyMap<RuntimeId, number>>;
  }) {
    this.#jailer = options.jailer;
    this.#firecracker = options.firecracker;
    this.#uidBase = options.uidBase;
    this.#known = options.known;
  }

  /** @throws ProviderError when Firecracker's program is not there; ResourceLimit when each user is lent. */
  async take(runtimeId: RuntimeId): Promise<Jail> {
    const program = await programFile(this.#firecracker);
    await this.#learn();
    let uid = this.#uidBase + 1;
    while (this.#lent.has(uid)) uid += 1;
    if (uid >= this.#uidBase + mostJails)
      throw new ResourceLimit(`each of the ${mostJails - 1} users of jails is in use; destroy a sandbox`);
    this.#lent.set(uid, runtimeId);
    const inside = join(basename(program), runtimeId, "root");
    return { jailer: this.#jailer, program, uid, gid: this.#uidBase, inside };
  }

  /** Once its machine is gone. */
  giveBack(runtimeId: RuntimeId): void {
    for (const [uid, holder] of this.#lent) if (holder === runtimeId) this.#lent.delete(uid);
  }

  #learn(): Promise<void> {
    const learn = async () => {
      for (const [runtimeId, uid] of await this.#known()) this.#lent.set(uid, runtimeId);
    };
    this.#learning ??= learn().catch((error: unknown) => {
      this.#learning = undefined;
      throw error;
    });
    return this.#learning;
  }
}

/** The file itself: the jailer names the jail after it, and snapshots are of one program. */
export async function programFile(program: string): Promise<string> {
  const found = program.includes("/") ? program : await findProgram(program);
  if (found === undefined)
    throw new ProviderError(
      `${program} is not installed; install Firecracker or set providers.firecracker.firecracker_path`,
    );
  try {
    return await realpath(found);
  } catch (error) {
    throw new ProviderError(`providers.firecracker.firecracker_path ${found} is not there`, { cause: error });
  }
}
