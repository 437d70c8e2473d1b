import { deadlineAfter } from "../../platform/deadline.ts";
import { Conflict, type DomainError, NotFound } from "../../ports/errors.ts";
import type { ExecTarget } from "./exec-target.ts";
import type { RunningSandboxes } from "./running-sandboxes.ts";

/** How long it may take to see whether a sandbox is still there whose connection ended. */
const lookDeadlineMs = 2_000;

/** What is known of a command: details of an error that tells why its end is not. */
export type CommandDetails = Record<string, unknown> & { exec_id: string };

/** @returns what a caller is told whose command went with its sandbox; undefined while the sandbox is there. */
export async function lostWithSandbox(
  sandboxes: Pick<RunningSandboxes, "locate">,
  target: ExecTarget,
  details: CommandDetails,
): Promise<DomainError | undefined> {
  try {
    using deadline = deadlineAfter(lookDeadlineMs);
    await sandboxes.locate(target.row.id, { signal: deadline.signal });
    return undefined;
  } catch (error) {
    const ended = error instanceof NotFound ? NotFound : error instanceof Conflict ? Conflict : undefined;
    if (ended === undefined) return undefined;
    const known = error as DomainError;
    return new ended(`command ${details.exec_id} is lost: ${known.message}`, {
      cause: error,
      details: { ...known.details, ...details, reason: "lost" },
    });
  }
}
