import { createHash } from "node:crypto";
import { setImmediate } from "node:timers/promises";
import { ToldInTurns } from "../../platform/told-in-turns.ts";
import { BadRequest, Conflict, type SandboxId, type SandboxRow, Unavailable } from "../../ports/index.ts";
import type { SandboxContext } from "./context.ts";
import { mostJoined } from "./named-spawns.ts";
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

/** One that waits for the spawn of its key: told what that made, or to spawn in its turn. */
interface Follower {
  readonly made: (sandbox: SandboxRow) => void;
  readonly lead: () => void;
}

interface Line {
  readonly bodyHash: string;
  /** In the order they came. */
  readonly followers: Set<Follower>;
}

/**
 * Makes spawns with one key of one owner one spawn. The key is claimed in the transaction that reserves the sandbox,
 * and goes with it when the spawn is undone. Requests with the key in flight wait for what the first comes to; when it
 * fails, the next takes over, and nobody else is woken: thousands that each looked whether their turn had come would
 * make the service stand still.
 */
export class IdempotentSpawns {
  readonly #context: Pick<SandboxContext, "store" | "clock" | "logger">;
  readonly #inFlight = new Map<string, Line>();
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
    const line: Line = known ?? { bodyHash: request.bodyHash, followers: new Set() };
    if (known === undefined) this.#inFlight.set(name, line);
    else {
      if (line.bodyHash !== request.bodyHash) throw otherBody(request.key);
      const sandbox = await follow(line, request);
      if (sandbox !== undefined) return { sandbox, replayed: true };
    }
    try {
      const held = await this.#context.store.idempotency.find({ ...request, now: this.#context.clock.now() });
      const outcome =
        held === undefined
          ? await this.#spawn(request, spawn)
          : { sandbox: await this.#made(request, held), replayed: true };
      this.#inFlight.delete(name);
      const { sandbox } = outcome;
      this.#turns.tell(Array.from(line.followers, ({ made }) => made.bind(undefined, sandbox)));
      return outcome;
    } catch (error) {
      void this.#passOn(name, line);
      throw error;
    }
  }

  /** In a later turn: many that fail at once one after the other leave others theirs. */
  async #passOn(name: string, line: Line): Promise<void> {
    await setImmediate();
    const [next] = line.followers;
    if (next === undefined) this.#inFlight.delete(name);
    else next.lead();
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

/**
 * Waits for what the spawn of a line comes to.
 * @returns the sandbox it made; undefined when the caller is to spawn.
 * @throws Unavailable when too many wait; the signal's reason.
 */
function follow(
  { followers }: Line,
  { key, signal }: { key: string; signal: AbortSignal },
): Promise<SandboxRow | undefined> {
  if (followers.size >= mostJoined)
    throw new Unavailable(
      `${mostJoined} requests wait for the spawn with Idempotency-Key "${key}" already; try again in a moment`,
      { retryAfterS: 1 },
    );
  return new Promise((resolve, reject) => {
    const settle = () => {
      followers.delete(follower);
      signal.removeEventListener("abort", onAbort);
    };
    const follower: Follower = {
      made: (sandbox) => {
        settle();
        resolve(sandbox);
      },
      lead: () => {
        settle();
        resolve(undefined);
      },
    };
    const onAbort = () => {
      settle();
      reject(signal.reason);
    };
    if (signal.aborted) {
      reject(signal.reason);
      return;
    }
    signal.addEventListener("abort", onAbort, { once: true });
    followers.add(follower);
  });
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
