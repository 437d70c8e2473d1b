import { abortable } from "../../platform/abortable.ts";
import { deadlineAfter } from "../../platform/deadline.ts";
import type { CallOptions, SandboxOperations, SandboxRow } from "../../ports/index.ts";
import type { SandboxContext } from "./context.ts";
import type { LiveSandbox } from "./live-sandboxes.ts";

/** What is written may differ from what was told by so much, milliseconds: a telling takes its time. */
const inexactMs = 5_000;

type Grace = Pick<SandboxContext, "deadmanGraceMs">;

/**
 * When a sandbox has ended by its own switch at the latest, which needs neither the service nor its provider. It is never earlier
 * than what the sandbox was told: a later time is written before it is told, an earlier one after.
 */
export function endsItselfAt(row: Pick<SandboxRow, "expiresAt" | "endsItselfAt">, grace: Grace): Date {
  return row.endsItselfAt ?? afterGrace(row.expiresAt, grace);
}

/** The same once its expiry is `expiresAt`, and until it is told that. */
export function endsItselfUntilTold(row: SandboxRow, expiresAt: Date, grace: Grace): Date {
  return new Date(Math.max(endsItselfAt(row, grace).getTime(), afterGrace(expiresAt, grace).getTime()));
}

/**
 * Tells a sandbox to end itself after `lifeMs`. Nothing else works on it meanwhile.
 * @throws what keeps it from being told, or a later time from being written.
 */
export async function tellSwitch(
  entry: LiveSandbox,
  options: CallOptions & { operations: SandboxOperations; lifeMs: number; withinMs: number },
  context: SandboxContext,
): Promise<void> {
  const { operations, lifeMs, withinMs, signal } = options;
  const { clock } = context;
  const until = () => new Date(clock.now().getTime() + lifeMs);
  if (differs(entry, until(), context) > 0) await write(entry, until(), context);
  using deadline = deadlineAfter(withinMs, signal);
  await abortable(operations.setExpiry(lifeMs, deadline), deadline.signal);
  await writeTold(entry, until(), context);
}

/** It was told to end itself by then. Nothing else works on it. Never throws: what is written then is too late, which the next telling mends. */
export async function writeTold(entry: LiveSandbox, at: Date, context: SandboxContext): Promise<void> {
  if (differs(entry, at, context) === 0) return;
  try {
    await write(entry, at, context);
  } catch (error) {
    context.logger.warn(
      { sandbox_id: entry.row.id, err: error },
      "what a sandbox was told of its end could not be written down",
    );
  }
}

/** Above 0: it is later than what is written. */
function differs({ row }: LiveSandbox, at: Date, grace: Grace): number {
  const byMs = at.getTime() - endsItselfAt(row, grace).getTime();
  return Math.abs(byMs) > inexactMs ? byMs : 0;
}

async function write(entry: LiveSandbox, at: Date, context: SandboxContext): Promise<void> {
  const change = { endsItselfAt: at, updatedAt: context.clock.now() };
  const states = ["running", "unhealthy"] as const;
  entry.row =
    (await context.store.sandboxes.update(entry.row.id, states, change, context.fence)) ?? entry.row;
}

function afterGrace(expiresAt: Date, { deadmanGraceMs }: Grace): Date {
  return new Date(expiresAt.getTime() + deadmanGraceMs);
}
