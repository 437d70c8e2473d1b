import { type AlcoveClient, AlcoveError } from "@alcove/sdk";
import type { SandboxState } from "@alcove/wire";
import { sandboxNamePattern } from "@alcove/wire/light";
import type { ClientFlags } from "../context.ts";
import { UsageError } from "../exit-codes.ts";

/**
 * @returns whose sandboxes are meant where many are: of `--owner`, else of `--user-id`, else everybody's.
 * @throws UsageError for an empty one, as of a variable that is not set: it must not mean everybody's.
 */
export function ownerOf(flags: Pick<ClientFlags, "userId"> & { owner?: string }): string | undefined {
  const owner = flags.owner ?? flags.userId;
  if (owner?.trim() === "") {
    throw new UsageError(`${flags.owner === undefined ? "--user-id" : "--owner"} is empty`);
  }
  return owner;
}

const name = new RegExp(`^${sandboxNamePattern}$`);
const living: readonly SandboxState[] = ["creating", "running", "unhealthy"];

/**
 * @returns the id of the sandbox that is meant: `text` itself, unless it is a name.
 * @throws AlcoveError `not_found`; UsageError when several owners have a sandbox of this name.
 */
export async function idOf(
  client: AlcoveClient,
  text: string,
  { flags, signal }: { flags: Pick<ClientFlags, "userId">; signal?: AbortSignal | undefined },
): Promise<string> {
  if (!name.test(text)) return text;
  const filter = { name: text, ...(flags.userId ? { ownerId: flags.userId } : {}) };
  const found = [];
  for await (const sandbox of client.allSandboxes(filter, signal === undefined ? {} : { signal }))
    if (living.includes(sandbox.state)) found.push(sandbox);
  const [only, another] = found;
  if (only === undefined) {
    const whose = flags.userId ? ` of owner "${flags.userId}"` : "";
    throw new AlcoveError({
      status: 404,
      code: "not_found",
      message: `no living sandbox${whose} has the name "${text}"`,
    });
  }
  if (another === undefined) return only.id;
  const all = found.map(({ id, owner_id }) => `${id} (${owner_id ? `owner "${owner_id}"` : "nobody's"})`);
  throw new UsageError(
    `several sandboxes have the name "${text}": ${all.join(", ")}; give an id, or say whose with --user-id`,
  );
}
