import { createHash } from "node:crypto";
import { abortable } from "../../platform/abortable.ts";
import { BadRequest, Conflict, type SandboxId, type SandboxRow, Unavailable } from "../../ports/index.ts";
import type { SandboxContext } from "./context.ts";
import type { SpawnInput } from "./spawn-plan.ts";

/** How long a key leads to the sandbox it made. */
export const keyRememberedMs = 24 * 3_600_000;
/** Longest key, characters. */
export const longestKey = 255;

/** What a spawn claims together with its reservation. */
export interface SpawnClaim {
  key: string;
  bodyHash: string;
}

/** Another spawn holds the key: this one is not to be made. */
export class KeyClaimed extends Error {
  readonly held: { bodyHash: string; sandboxId: SandboxId };

  constructor({ bodyHash, sandboxId }: { bodyHash: string; sandboxId: SandboxId }) {
    super(`sandbox "${sandboxId}" was made with the same Idempotency-Key`);
    this.held = { bodyHash, sandboxId };
  }
}

/**
 * Makes spawns with one key of one owner one spawn. The key is claimed in the transaction that reserves the sandbox,
 * and goes with it when the spawn is undone. A second request with the key in flight waits for the first, and takes
 * over when that fails.
 */
export class IdempotentSpawns {
  readonly #context: Pick<SandboxContext, "store" | "clock" | "logger">;
  readonly #inFlight = new Map<string, { bodyHash: string; settled: Promise<void> }>();

  constructor(context: Pick<SandboxContext, "store" | "clock" | "logger">) {
    this.#context = context;
  }

  async run(
    request: { key: string; ownerId: string; id: SandboxId; bodyHash: string; signal: AbortSignal },
    spawn: (claim: SpawnClaim) => Promise<SandboxRow>,
  ): Promise<{ sandbox: SandboxRow; replayed: boolean }> {
    if (request.key.length > longestKey || !/^[\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?$/.test(request.key)) {
      throw new BadRequest(`Idempotency-Key must be 1 to ${longestKey} printable ASCII characters`);
    }
    const name = `${request.ownerId}\0${request.key}`;
    for (let first = this.#inFlight.get(name); first !== undefined; first = this.#inFlight.get(name)) {
      if (first.bodyHash !== request.bodyHash) throw otherBody(request.key);
      await abortable(first.settled, request.signal);
    }
    const { promise: settled, resolve } = Promise.withResolvers<void>();
    this.#inFlight.set(name, { bodyHash: request.bodyHash, settled });
    try {
      const held = await this.#context.store.idempotency.find({ ...request, now: this.#context.clock.now() });
      if (held !== undefined) return { sandbox: await this.#made(request, held), replayed: true };
      return await this.#spawn(request, spawn);
    } finally {
      this.#inFlight.delete(name);
      resolve();
    }
  }

  async #spawn(
    request: { key: string; ownerId: string; id: SandboxId; bodyHash: string },
    spawn: (claim: SpawnClaim) => Promise<SandboxRow>,
  ): Promise<{ sandbox: SandboxRow; replayed: boolean }> {
    const { key, ownerId, id: sandboxId, bodyHash } = request;
    try {
      return { sandbox: await spawn({ key, bodyHash }), replayed: false };
    } catch (error) {
      if (error instanceof KeyClaimed)
        return { sandbox: await this.#made(request, error.held), replayed: true };
      await this.#context.store.idempotency.release({ ownerId, key, sandboxId }).catch((failure: unknown) =>
        // It goes with its row, once the reconciler has undone the spawn.
        this.#context.logger.warn(
          { sandbox_id: sandboxId, err: failure },
          "an idempotency key could not be released",
        ),
      );
      throw error;
    }
  }

  /** @returns the sandbox that a key has made. */
  async #made(
    request: { key: string; bodyHash: string },
    held: { bodyHash: string; sandboxId: SandboxId },
  ): Promise<SandboxRow> {
    const row = await this.#context.store.sandboxes.get(held.sandboxId);
    if (row === undefined || row.state === "creating") {
      throw new Unavailable(
        `an earlier spawn with Idempotency-Key "${request.key}" is being made or undone; try again soon`,
        { retryAfterS: 1 },
      );
    }
    if (held.bodyHash !== request.bodyHash) throw otherBody(request.key);
    return row;
  }
}

/** Tells two requests with one key apart: by what they mean, not by how they were written. */
export function hashInput(input: SpawnInput): string {
  const sorted = (_key: string, value: unknown) =>
    value !== null && typeof value === "object" && !Array.isArray(value)
      ? Object.fromEntries(Object.entries(value).sort(([a], [b]) => (a < b ? -1 : 1)))
      : value;
  return createHash("sha256").update(JSON.stringify(input, sorted)).digest("hex");
}

function otherBody(key: string): Conflict {
  return new Conflict(`Idempotency-Key "${key}" was used with another body; use a new key`);
}
