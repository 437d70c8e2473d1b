import type { AlcoveClient } from "@alcove/sdk";
import { type ClientFlags, interruptSignal, type JsonFlags, openClient } from "../context.ts";
import { ExitWith, exitCodes, UsageError } from "../exit-codes.ts";
import { reportFailure } from "../failure.ts";
import { printJson, printLines } from "../terminal/output.ts";
import { Progress } from "../terminal/progress.ts";
import { idOf, ownerOf } from "./named.ts";

const concurrency = 8;

export async function kill(
  ids: readonly string[],
  flags: ClientFlags & JsonFlags & { all?: boolean; owner?: string },
): Promise<void> {
  if (ids.length === 0 && !flags.all) throw new UsageError("name the sandboxes to destroy, or give --all");
  if (ids.length > 0 && flags.all) throw new UsageError("give either ids or --all");
  if (flags.owner !== undefined && !flags.all) throw new UsageError("--owner goes with --all");
  const ownerId = flags.all ? ownerOf(flags) : undefined;
  using client = openClient(flags);
  using interrupt = interruptSignal();
  const { signal } = interrupt;
  const wanted = flags.all ? await everyId(client, { ownerId, signal }) : [...new Set(ids)];
  using progress = new Progress(`destroying ${wanted.length} sandboxes`);
  const destroyed: string[] = [];
  let code = 0;
  const queue = wanted.values();
  const worker = async () => {
    for (const sandbox of queue) {
      try {
        const id = await idOf(client, sandbox, { flags, signal });
        await client.destroy(id, { signal });
        destroyed.push(id);
        if (!flags.json) printLines([id]);
      } catch (error) {
        code = reportFailure(error) || exitCodes.failed;
      }
      progress.update(`${destroyed.length} of ${wanted.length}`);
    }
  };
  await Promise.all(Array.from({ length: Math.min(concurrency, wanted.length) }, worker));
  if (flags.json) printJson({ destroyed });
  if (code !== 0) throw new ExitWith(code);
}

async function everyId(
  client: AlcoveClient,
  { ownerId, signal }: { ownerId: string | undefined; signal: AbortSignal },
): Promise<string[]> {
  const found: string[] = [];
  const filter = ownerId === undefined ? {} : { ownerId };
  for await (const { id } of client.allSandboxes(filter, { signal })) found.push(id);
  return found;
}
