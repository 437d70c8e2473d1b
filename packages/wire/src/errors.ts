import { type Static, Type } from "typebox";

/** Every `code` an error body can carry. docs/api/README.md. */
export const errorCodes = [
  "bad_request",
  "unauthorized",
  "forbidden",
  "not_found",
  "method_not_allowed",
  "timeout",
  "conflict",
  "too_large",
  "unsupported_media_type",
  "range_not_satisfiable",
  "upgrade_required",
  "resource_limit",
  "provider_error",
  "internal",
  "bad_gateway",
  "unavailable",
  "gateway_timeout",
  "storage_full",
  "remote_worker_rpc_unavailable",
] as const;

export type ErrorCode = (typeof errorCodes)[number];

/** Every `reason` a `resource_limit` for a spawn, an extension, a command, a file or a request can carry. docs/api/README.md. */
export const limitReasons = [
  "disk",
  "max_exec_timeout",
  "max_memory_mb",
  "max_memory_mb_per_owner",
  "max_sandboxes",
  "max_sandboxes_per_owner",
  "max_ttl",
  "max_vcpus",
  "max_vcpus_per_owner",
  "pool_full",
  "rate_limit",
] as const;
export type LimitReason = (typeof limitReasons)[number];

/** Every `what` of a `not_found` that a program may act on: what there is none of. docs/api/README.md. */
export const missingThings = [
  "exec",
  "file",
  "image",
  "key",
  "provider",
  "quota",
  "sandbox",
  "template",
  "worker",
] as const;
export type MissingThing = (typeof missingThings)[number];

/** Every `sandbox_ended` of a `not_found` or `conflict` for a sandbox that there was, or that is ending. docs/api/README.md. */
export const sandboxEndings = ["destroyed", "error", "expired"] as const;
export type SandboxEnding = (typeof sandboxEndings)[number];

/** Every `goes_on` of an `unavailable` for a command that goes on: why it is not answered. docs/api/exec.md. */
export const goingOn = ["connection_lost", "no_room", "shutting_down"] as const;

/** The body of every refusal. docs/api/README.md. */
export const ErrorBody = Type.Object(
  {
    code: Type.Enum([...errorCodes]),
    message: Type.String({ description: "Names the thing, the value, the limit and the way out." }),
    what: Type.Optional(
      Type.Enum([...missingThings], { description: "Of a not_found: what there is none of." }),
    ),
    reason: Type.Optional(
      Type.String({
        description: `Of a resource_limit, what is at its limit: ${limitReasons.join(", ")}. lost: of a command that went with its sandbox.`,
      }),
    ),
    queue: Type.Optional(
      Type.Enum(["full", "timeout"], { description: "Of a spawn that was to wait for its place." }),
    ),
    waited_ms: Type.Optional(Type.Integer({ description: "How long it waited." })),
    sandbox_ended: Type.Optional(
      Type.Enum([...sandboxEndings], {
        description:
          "Of a not_found or conflict: how the sandbox ended, or is ending. A new one is what helps.",
      }),
    ),
    sandbox_ended_at: Type.Optional(Type.String({ format: "date-time" })),
    exec_id: Type.Optional(Type.String({ description: "Of a command that was started all the same." })),
    goes_on: Type.Optional(
      Type.Enum([...goingOn], {
        description: "Of an unavailable: the command goes on, and its output can be read by its exec_id.",
      }),
    ),
    next_offset: Type.Optional(
      Type.Integer({ description: "Where to read on of its output, after what stdout and stderr have." }),
    ),
    stdout: Type.Optional(Type.String({ description: "Its output so far, as in a result." })),
    stderr: Type.Optional(Type.String()),
    taken: Type.Optional(
      Type.Integer({
        description: "Of input with an offset beyond what has arrived: how many bytes of that name have.",
      }),
    ),
  },
  { $id: "Error", additionalProperties: true },
);
export type ErrorBody = Static<typeof ErrorBody>;
