import { ignoreOutcome } from "../../platform/abortable.ts";
import { type RuntimeProvider, type SandboxRow, Unavailable } from "../../ports/index.ts";
import { NameTaken } from "../scheduling/admission.ts";
import type { SandboxContext } from "./context.ts";
import { hasTimeLeft, type LiveSandbox } from "./live-sandboxes.ts";
import type { NamedSpawns } from "./named-spawns.ts";
import { pause } from "./pause.ts";

/** How often it is looked again before a name that changes hands all the time is given up. */
const mostTurns = 64;
/** Between two looks at a sandbox that is on its way and that nobody here works on, milliseconds. */
const pauseMs = 100;

/**
 * Gives the owner's living sandbox of a name, or makes one. Of any number of calls at once one spawns; the others wait for
 * what it does and look again. The store lets one sandbox have the name, whoever else spawns.
 * @throws what `spawn` throws; Unavailable when the sandbox of the name is neither there nor gone in time.
 */
export async function acquireNamed(
  context: Pick<SandboxContext, "store" | "live" | "clock">,
  wanted: { ownerId: string; name: string },
  options: {
    signal: AbortSignal;
    named: NamedSpawns;
    /** @param waitedMs of the time that a spawn may wait for a place. */
    spawn: (waitedMs: number) => Promise<SandboxRow>;
    /** Ends a sandbox whose time is over. */
    expire: (id: SandboxRow["id"]) => Promise<void>;
    /** Waits until a provider has said what it runs, or that it cannot. */
    listed: (provider: RuntimeProvider) => Promise<void>;
  },
): Promise<{ sandbox: SandboxRow; made: boolean }> {
  const { store, live, clock } = context;
  const { signal, named, spawn, expire, listed } = options;
  let unsure: string | undefined;
  for (let turn = 0; turn < mostTurns; turn++) {
    signal.throwIfAborted();
    const row = await store.sandboxes.named(wanted.ownerId, wanted.name);
    if (row === undefined) {
      try {
        const sandbox = await named.spawn(wanted, { signal, spawn });
        if (sandbox !== undefined) return { sandbox, made: true };
      } catch (error) {
        if (!(error instanceof NameTaken)) throw error;
      }
      continue;
    }
    const work = live.workOn(row.id);
    if (work !== undefined && work.kind !== "other") {
      await live.nameFreed(work, signal);
      continue;
    }
    const entry = live.get(row.id);
    const { outdated = false, provider } = entry ?? {};
    if (provider !== undefined && mayHaveEnded(entry, clock.now())) {
      unsure = `the sandbox named "${wanted.name}" may have ended, which provider "${provider.name}" does not say now; try again in a moment`;
      await listed(provider);
      if (mayHaveEnded(live.get(row.id), clock.now())) await pause(clock, pauseMs, signal);
      continue;
    }
    unsure = row.destroyRequested
      ? `the name "${wanted.name}" is not free yet: the end of its sandbox "${row.id}" is not confirmed; try again in a moment`
      : undefined;
    if (lives(row, outdated, clock.now())) return { sandbox: row, made: false };
    // After the clock was set it may be a while until this is noticed.
    if (work === undefined && row.state !== "creating" && !row.destroyRequested) {
      try {
        const ended = expire(row.id);
        ended.catch(ignoreOutcome);
        const begun = live.workOn(row.id);
        await (begun === undefined ? ended : Promise.race([ended, live.nameFreed(begun, signal)]));
        continue;
      } catch {
        signal.throwIfAborted();
      }
    }
    await pause(clock, pauseMs, signal);
  }
  throw new Unavailable(
    unsure ??
      `the sandbox named "${wanted.name}" is being made or destroyed all the time; try again in a moment`,
    { retryAfterS: 1 },
  );
}

/** By an older store its time is over, and nobody has heard of it since: it may have been extended, or be gone. */
function mayHaveEnded(entry: LiveSandbox | undefined, now: Date): boolean {
  if (entry === undefined || !entry.outdated || entry.operations !== undefined) return false;
  return entry.row.expiresAt <= now && !entry.row.destroyRequested;
}

/** Whether it can be used, now or once it answers again. */
function lives(row: SandboxRow, outdated: boolean, now: Date): boolean {
  return row.state !== "creating" && !row.destroyRequested && hasTimeLeft({ row, outdated }, now);
}
