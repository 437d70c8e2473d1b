import { ProviderError } from "../../ports/errors.ts";
import type { CallOptions, ExecInfo } from "../../ports/index.ts";
import type { AgentChannel } from "./channel.ts";
import { execInfoOf, listOf, objectOf, optionalNumberOf } from "./reading.ts";

/** Everything an agent remembers of commands, oldest first; it tells it in batches that fit a frame. */
export async function listExecs(
  channel: AgentChannel,
  options: CallOptions & { fresh?: boolean },
): Promise<ExecInfo[]> {
  const execs: ExecInfo[] = [];
  // An older agent knows no batches: it never tells of a next one, and so is never asked for it.
  let after: number | undefined;
  for (;;) {
    const reply = objectOf(await channel.call({ op: "exec.list", after }, options), "reply");
    execs.push(...listOf(reply, "execs").map(execInfoOf));
    const next = optionalNumberOf(reply, "next");
    if (next === undefined) return execs;
    if (after !== undefined && next <= after)
      throw new ProviderError(`the agent listed its commands after ${next} a second time`);
    after = next;
  }
}
