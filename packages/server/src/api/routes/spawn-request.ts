import { OwnerId, type SpawnRequest } from "@alcove/wire";
import type { FastifyReply, FastifyRequest } from "fastify";
import { Type } from "typebox";
import { parseOwnerId } from "../../core/owners.ts";
import { userMissing } from "../../core/pool/pool.ts";
import { longestKey } from "../../core/sandboxes/idempotency.ts";
import type { SandboxService, SpawnInput } from "../../core/sandboxes/sandbox-service.ts";
import { BadRequest } from "../../ports/errors.ts";
import type { SandboxRow } from "../../ports/store.ts";
import { ownerFor, userIdOf } from "../access.ts";
import { defined, given, optionalDuration, type Total } from "../parse.ts";
import { ServerTiming } from "./route-app.ts";

const UserIdHeader = Type.Optional(Type.String({ ...OwnerId, description: "Owner; overrides owner_id." }));

/** What an acquisition, which is safe to repeat by itself, and a preflight may say beside their bodies. */
export const OwnerHeaders = Type.Object({ "x-user-id": UserIdHeader });

/** What every request that spawns may say beside its body. docs/api/sandboxes.md. */
export const SpawnHeaders = Type.Object({
  "idempotency-key": Type.Optional(
    Type.String({
      "x-rule": "core",
      description: "Makes a repeated spawn safe: the same key and body give the same sandbox for 24 hours.",
      pattern: "^(?:[\\x21-\\x7e](?:[\\x20-\\x7e]*[\\x21-\\x7e])?)?$",
      maxLength: longestKey,
      examples: ["order-4711"],
    }),
  ),
  "x-user-id": UserIdHeader,
});

/** Of the answer to an acquisition. */
export const acquiredHeaders = ["Location", "Server-Timing"] as const;

/** Of the answer to a spawn. */
export const spawnedHeaders = [...acquiredHeaders, "Idempotent-Replayed"] as const;

/** Spawns, and puts into the answer what is not its body. */
export async function spawned(
  sandboxes: SandboxService,
  input: SpawnInput,
  { request, reply }: { request: FastifyRequest; reply: FastifyReply },
): Promise<SandboxRow> {
  const idempotencyKey = idempotencyKeyOf(request);
  const timing = new ServerTiming();
  const { sandbox, replayed } = await sandboxes.spawn(
    input,
    defined({ signal: reply.callerSignal, idempotencyKey, onStage: timing.onStage }),
  );
  timing.apply(reply);
  if (replayed) reply.header("idempotent-replayed", "true");
  reply.code(201).header("location", `/api/v1/sandboxes/${sandbox.id}`);
  return sandbox;
}

/** Gives the living sandbox of the name or a new one, and puts into the answer what is not its body. */
export async function acquired(
  sandboxes: SandboxService,
  input: SpawnInput,
  reply: FastifyReply,
): Promise<SandboxRow> {
  const timing = new ServerTiming();
  const { sandbox, made } = await sandboxes.acquire(input, {
    signal: reply.callerSignal,
    onStage: timing.onStage,
  });
  timing.apply(reply);
  reply.code(made ? 201 : 200).header("location", `/api/v1/sandboxes/${sandbox.id}`);
  return sandbox;
}

/** @param options.pooled only the header says whose it is. */
export function spawnInput(
  request: FastifyRequest<{ Body: SpawnRequest }>,
  options: { pooled: boolean },
): SpawnInput {
  const {
    name,
    image,
    provider,
    memory_mb,
    vcpus,
    ttl,
    metadata,
    owner_id,
    env,
    user,
    workdir,
    network,
    template,
    ...rest
  } = request.body;
  rest satisfies Record<string, never>;
  // Looked at also where the header beats it: what is wrong is told.
  const inBody = given(parseOwnerId(owner_id));
  return defined<Total<SpawnInput>>({
    name: given(name),
    image: given(image),
    provider: given(provider),
    memoryMb: memory_mb === 0 ? undefined : memory_mb,
    vcpus: vcpus === 0 ? undefined : vcpus,
    ttlMs: optionalDuration("ttl", ttl),
    metadata,
    ownerId: ownerOf(request, options.pooled ? undefined : inBody, options),
    env,
    user: given(user),
    workdir: given(workdir),
    network,
    template: given(template),
  });
}

/** Whose a new sandbox is. */
function ownerOf(
  request: FastifyRequest,
  inBody: string | undefined,
  { pooled }: { pooled: boolean },
): string | undefined {
  const named = userIdOf(request) ?? inBody;
  if (pooled && named === undefined) throw new BadRequest(userMissing);
  return ownerFor(request.principal, named);
}

function idempotencyKeyOf(request: FastifyRequest): string | undefined {
  const key = request.headers["idempotency-key"];
  if (typeof key !== "string" || key === "") return undefined;
  return key;
}
