import type { NetworkMode, Sandbox, SpawnRequest } from "@alcove/wire";
import { type ClientFlags, interruptSignal, type JsonFlags, openClient } from "../context.ts";
import { printJson, printLines } from "../terminal/output.ts";
import { printableLine } from "../terminal/printable.ts";
import { Progress } from "../terminal/progress.ts";
import { elapsed, shortDuration } from "../terminal/text.ts";

export interface SpawnFlags extends ClientFlags, JsonFlags {
  name?: string;
  image?: string;
  provider?: string;
  memory?: number;
  vcpus?: number;
  ttl?: string;
  metadata?: Record<string, string>;
  owner?: string;
  env?: Record<string, string>;
  user?: string;
  workdir?: string;
  network?: NetworkMode;
  template?: string;
  idempotencyKey?: string;
  quiet?: boolean;
}

export async function spawn(flags: SpawnFlags): Promise<void> {
  const request = spawnRequest(flags);
  using client = openClient(flags);
  using interrupt = interruptSignal();
  const quiet = flags.quiet === true || flags.json === true;
  using progress = new Progress(`spawning${flags.image === undefined ? "" : ` ${flags.image}`}`, { quiet });
  const sandbox = await client.spawn(request, {
    signal: interrupt.signal,
    ...(flags.idempotencyKey === undefined ? {} : { idempotencyKey: flags.idempotencyKey }),
  });
  if (!quiet) progress.done(`${description(sandbox)}, after ${elapsed(progress.elapsedMs)}${life(sandbox)}`);
  print(sandbox, flags);
}

/** Prints the id of the sandbox that has the name, made or not. */
export async function acquire(
  name: string,
  flags: Omit<SpawnFlags, "name" | "idempotencyKey">,
): Promise<void> {
  const request = { ...spawnRequest(flags), name };
  using client = openClient(flags);
  using interrupt = interruptSignal();
  const quiet = flags.quiet === true || flags.json === true;
  using progress = new Progress(`acquiring ${name}`, { quiet });
  const { sandbox, made } = await client.acquire(request, { signal: interrupt.signal });
  const how = made ? `made after ${elapsed(progress.elapsedMs)}${life(sandbox)}` : "was there";
  if (!quiet) progress.done(`${description(sandbox)}, ${how}`);
  print(sandbox, flags);
}

function description({ state, provider, image }: Sandbox): string {
  return printableLine(`${state} on ${provider}, image ${image}`);
}

function life({ created_at, expires_at }: Sandbox): string {
  return `; lives for ${shortDuration(Date.parse(expires_at) - Date.parse(created_at))}`;
}

function print(sandbox: Sandbox, flags: JsonFlags): void {
  if (flags.json) printJson(sandbox);
  else printLines([sandbox.id]);
}

function spawnRequest(flags: SpawnFlags): SpawnRequest {
  const { image, provider, ttl, metadata, env, user, workdir, network } = flags;
  // Every field of the request, so that one it gains is not forgotten here.
  const fields: { [K in keyof Required<SpawnRequest>]: SpawnRequest[K] | undefined } = {
    name: flags.name,
    image,
    provider,
    memory_mb: flags.memory,
    vcpus: flags.vcpus,
    ttl,
    metadata,
    owner_id: flags.owner,
    env,
    user,
    workdir,
    network,
    template: flags.template,
  };
  return Object.fromEntries(Object.entries(fields).filter(([, value]) => value !== undefined));
}
