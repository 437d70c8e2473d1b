import { Conflict, type DomainError, NotFound } from "../../ports/errors.ts";
import { endOf } from "../sandboxes/in-sandbox.ts";
import type { ExecTarget } from "./exec-target.ts";
import type { RunningSandboxes } from "./running-sandboxes.ts";

/** What is known of a command: details of an error that tells why its end is not. */
export type CommandDetails = Record<string, unknown> & { exec_id: string };

/** @returns what a caller is told whose command went with its sandbox; undefined while the sandbox is there. */
export async function lostWithSandbox(
  sandboxes: Pick<RunningSandboxes, "locate">,
  target: ExecTarget,
  details: CommandDetails,
): Promise<DomainError | undefined> {
  const known = await endOf(sandboxes, target.row.id);
  if (known === undefined) return undefined;
  const kind = known instanceof NotFound ? NotFound : Conflict;
  return new kind(`command ${details.exec_id} is lost: ${known.message}`, {
    cause: known,
    details: { ...known.details, ...details, reason: "lost" },
  });
}
