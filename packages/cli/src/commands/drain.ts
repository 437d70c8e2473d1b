import { setTimeout } from "node:timers/promises";
import { type AlcoveClient, AlcoveError } from "@alcove/sdk";
import { type ClientFlags, interruptSignal, type JsonFlags, openClient } from "../context.ts";
import { UsageError } from "../exit-codes.ts";
import { printJson } from "../terminal/output.ts";
import { Progress } from "../terminal/progress.ts";

export interface DrainFlags extends ClientFlags, JsonFlags {
  end?: boolean;
  wait?: boolean;
}

const lookEveryMs = 2_000;

/** Lets a worker take no new sandboxes, or take them again. */
export async function drain(worker = "local", flags: DrainFlags): Promise<void> {
  if (flags.end && flags.wait) throw new UsageError("--wait goes with a drain, not with --end");
  using client = openClient(flags);
  using interrupt = interruptSignal();
  const { signal } = interrupt;
  const changed = await (flags.end
    ? client.workers.endDrain(worker, { signal })
    : client.workers.drain(worker, { signal }));
  if (flags.wait) await untilEmpty(client, { worker, signal });
  if (flags.json) return printJson(changed);
  if (flags.end) process.stdout.write(`${worker} takes new sandboxes\n`);
  else {
    const left = await sandboxesOn(client, { worker, signal });
    process.stdout.write(
      `${worker} takes no new sandboxes; ${left === 0 ? "none is" : left === 1 ? "1 is" : `${left} are`} left on it\n`,
    );
  }
}

/** Sandboxes end at the latest when their time is over. Those in state error have ended: what is left is a record. */
async function untilEmpty(
  client: AlcoveClient,
  { worker, signal }: { worker: string; signal: AbortSignal },
): Promise<void> {
  using progress = new Progress(`waiting until ${worker} is empty`);
  for (;;) {
    const left = await sandboxesOn(client, { worker, signal }).catch((error: unknown) => {
      // The service may be started anew meanwhile, which is what a drain is often for; the drain outlives that.
      if (signal.aborted || !(error instanceof AlcoveError) || (error.status > 0 && error.status < 500))
        throw error;
    });
    if (left === 0) return;
    progress.update(left === undefined ? "no answer; asking again" : `${left} left`);
    await setTimeout(lookEveryMs, undefined, { signal });
  }
}

async function sandboxesOn(
  client: AlcoveClient,
  { worker, signal }: { worker: string; signal: AbortSignal },
): Promise<number> {
  const { sandboxes } = await client.metrics({ signal });
  // A service that is older than this command counts its records too.
  const counts: Partial<typeof sandboxes> = sandboxes;
  return (counts.active_by_worker ?? sandboxes.by_worker)[worker] ?? 0;
}
