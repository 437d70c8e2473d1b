import { type AlcoveClient, AlcoveError } from "@alcove/sdk";
import type { Sandbox, SandboxStats } from "@alcove/wire";
import { byteSize } from "../terminal/text.ts";

const concurrency = 8;
/** What a sandbox answers that is not running, or ended meanwhile. */
const notRunning: readonly string[] = ["not_found", "conflict", "unavailable", "bad_request"];

/** What sandboxes use now, by id; those that cannot tell are left out. @throws AlcoveError when the service itself does not answer. */
export async function usageOf(
  client: AlcoveClient,
  sandboxes: readonly Sandbox[],
  { signal }: { signal: AbortSignal },
): Promise<Map<string, SandboxStats>> {
  const found = new Map<string, SandboxStats>();
  const queue = sandboxes.filter(({ state }) => state === "running").values();
  const ask = async () => {
    for (const { id } of queue) {
      try {
        found.set(id, await client.stats(id, { signal }));
      } catch (error) {
        if (!(error instanceof AlcoveError) || !notRunning.includes(error.code)) throw error;
      }
    }
  };
  await Promise.all(Array.from({ length: concurrency }, ask));
  return found;
}

/** `12.0 MiB of 512.0 MiB`; a dash for what is not known. */
export function usedOf(used: number | undefined, limit: number | undefined, unit = byteSize): string {
  if (used === undefined) return "-";
  return limit === undefined || limit === 0 ? unit(used) : `${unit(used)} of ${unit(limit)}`;
}
