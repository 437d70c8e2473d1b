import { createHash } from "node:crypto";
import { setImmediate } from "node:timers/promises";
import { ToldInTurns } from "../../platform/told-in-turns.ts";
import { BadRequest, Conflict, type SandboxId, type SandboxRow, Unavailable } from "../../ports/index.ts";
import type { SandboxContext } from "./context.ts";
import { SpawnLine } from "./spawn-line.ts";
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

interface InFlight {
  readonly bodyHash: string;
  /** Told what the spawn made; undefined: to spawn in its turn. */
  readonly line: SpawnLine<SandboxRow | undefined>;
}

/**
 * Makes spawns with one key of one owner one spawn. The key is claimed in the transaction that reserves the sandbox,
 * and goes with it when the spawn is undone. Requests with the key in flight wait for what the first comes to; when it
 * fails, the next takes over, and nobody else is woken: thousands that each looked whether their turn had come would
 * make the service stand still.
 */
export class IdempotentSpawns {
  readonly #context: Pick<SandboxContext, "store" | "clock" | "logger">;
  readonly #inFlight = new Map<string, InFlight>();
  readonly #turns = new ToldInTurns();

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
    const known = this.#inFlight.get(name);
    const { bodyHash, line }: InFlight = known ?? { bodyHash: request.bodyHash, line: new SpawnLine() };
    if (known === undefined) this.#inFlight.set(name, { bodyHash, line });
    else {
      if (bodyHash !== request.bodyHash) throw otherBody(request.key);
      const callers = `requests wait for the spawn with Idempotency-Key "${request.key}"`;
      const sandbox = await line.join({ signal: request.signal, callers });
      if (sandbox !== undefined) return { sandbox, replayed: true };
    }
    try {
      const held = await this.#context.store.idempotency.find({ ...request, now: this.#context.clock.now() });
      const outcome =
        held === undefined
          ? await this.#spawn(request, spawn)
          : { sandbox: await this.#made(request, held), replayed: true };
      this.#inFlight.delete(name);
      this.#turns.tell(line.tellings(outcome.sandbox));
      return outcome;
    } catch (error) {
      void this.#passOn(name, line);
      throw error;
    }
  }

  /** In a later turn: many that fail at once one after the other leave others theirs. */
  async #passOn(name: string, line: InFlight["line"]): Promise<void> {
    await setImmediate();
    if (!line.tellFirst(undefined)) this.#inFlight.delete(name);
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
