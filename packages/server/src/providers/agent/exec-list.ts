import { listedCommandLength } from "../../ports/command-beginning.ts";
import { ProviderError } from "../../ports/errors.ts";
import type { CallOptions, ExecInfo } from "../../ports/index.ts";
import type { AgentChannel } from "./channel.ts";
import { execInfoOf, listOf, objectOf, optionalNumberOf } from "./reading.ts";

/** More than an agent remembers: 4,096 commands that run, 1,000 that have ended, and those that begin meanwhile. */
const mostExecs = 8_192;
/** An agent tells all of that in fewer batches of a megabyte. */
const mostBatches = 256;
/** Of command lines as they are told in JSON, where a character may take six; of those after that a list has less. */
const maxTextLength = 8 * 1024 * 1024;
const beginningLength = 256;

/** Everything an agent remembers of commands, oldest first; it tells it in batches that fit a frame. */
export async function listExecs(
  channel: AgentChannel,
  options: CallOptions & { fresh?: boolean },
): Promise<ExecInfo[]> {
  const execs: ExecInfo[] = [];
  let textLength = 0;
  // An older agent knows no batches: it never tells of a next one, and so is never asked for it.
  let after: number | undefined;
  for (let batches = 1; ; batches += 1) {
    const reply = objectOf(await channel.call({ op: "exec.list", after }, options), "reply");
    const told = listOf(reply, "execs");
    if (execs.length + told.length > mostExecs || batches > mostBatches)
      throw new ProviderError("the agent listed more commands than it can have");
    for (const record of told) {
      const commandLength = textLength < maxTextLength ? listedCommandLength : beginningLength;
      const info = execInfoOf(record, { commandLength });
      textLength += JSON.stringify([info.command, info.args]).length;
      execs.push(info);
    }
    const next = optionalNumberOf(reply, "next");
    if (next === undefined) return execs;
    if (after !== undefined && next <= after)
      throw new ProviderError(`the agent listed its commands after ${next} a second time`);
    after = next;
  }
}
