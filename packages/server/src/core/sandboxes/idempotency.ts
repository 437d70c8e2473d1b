import { createHash } from "node:crypto";
import { abortable } from "../../platform/abortable.ts";
import { BadRequest, Conflict, type SandboxId, type SandboxRow, Unavailable } from "../../ports/index.ts";
import type { SandboxContext } from "./context.ts";
import type { SpawnInput } from "./spawn-plan.ts";

const rememberedMs = 24 * 3_600_000;
const longestKey = 255;

/**
 * Makes spawns with one key of one owner one spawn. The key is claimed in the store before the spawn; a spawn that
 * is refused or fails gives it back. A second request with the key in flight waits for the first, and takes over when
 * that fails. DESIGN §5, Idempotency.
 */
export class IdempotentSpawns {
  readonly #context: Pick<SandboxContext, "store" | "clock" | "logger">;
  readonly #inFlight = new Map<string, { bodyHash: string; settled: Promise<void> }>();

  constructor(context: Pick<SandboxContext, "store" | "clock" | "logger">) {
    this.#context = context;
  }

  async run(
    request: { key: string; ownerId: string; id: SandboxId; bodyHash: string; signal: AbortSignal },
    spawn: () => Promise<SandboxRow>,
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
      const known = await this.#claim(request);
      if (known !== undefined) return { sandbox: known, replayed: true };
      return { sandbox: await this.#spawnOrRelease(request, spawn), replayed: false };
    } finally {
      this.#inFlight.delete(name);
      resolve();
    }
  }

  /** @returns the sandbox this key already made, or undefined when the key is now claimed for this request. */
  async #claim(request: {
    key: string;
    ownerId: string;
    id: SandboxId;
    bodyHash: string;
  }): Promise<SandboxRow | undefined> {
    const { store, clock } = this.#context;
    const { key, ownerId, id, bodyHash } = request;
    for (let attempt = 0; attempt < 2; attempt++) {
      const now = clock.now();
      const expiresAt = new Date(now.getTime() + rememberedMs);
      const claim = await store.idempotency.claim({ ownerId, key, bodyHash, sandboxId: id, now, expiresAt });
      if (claim.claimed) return undefined;
      const row = await store.sandboxes.get(claim.sandboxId);
      if (row?.state === "creating") {
        throw new Unavailable(
          `an earlier spawn with Idempotency-Key "${key}" is being undone; try again soon`,
        );
      }
      if (row !== undefined) {
        if (claim.bodyHash !== bodyHash) throw otherBody(key);
        return row;
      }
      // The process that claimed it died before its spawn was finished, and the spawn was undone.
      await store.idempotency.release({ ownerId, key, sandboxId: claim.sandboxId });
    }
    throw new Unavailable(`Idempotency-Key "${key}" is claimed by another request; try again soon`);
  }

  async #spawnOrRelease(
    request: { key: string; ownerId: string; id: SandboxId },
    spawn: () => Promise<SandboxRow>,
  ): Promise<SandboxRow> {
    try {
      return await spawn();
    } catch (error) {
      const { key, ownerId, id: sandboxId } = request;
      await this.#context.store.idempotency.release({ ownerId, key, sandboxId }).catch((failure: unknown) =>
        // The claim leads to no sandbox, so the next request with the key takes it over.
        this.#context.logger.warn({ err: failure }, "an idempotency key could not be released"),
      );
      throw error;
    }
  }
}

/** For callers that do not hash the body themselves. */
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
