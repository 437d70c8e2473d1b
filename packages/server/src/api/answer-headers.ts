/**
 * Headers of answers that tell clients something: what openapi.json says of them, and all that pages of other origins may
 * read. A route names those of its own under `openapi.headers`; openapi.ts knows the others.
 */
export const answerHeaders = {
  "X-Request-ID": {
    description: "The request, as the log names it: what the caller sent, or one made here.",
    schema: { type: "string", examples: ["req-8f3a21c04b7d-1"] },
  },
  "X-Exec-ID": {
    description: "The command: finds it again, also when the connection breaks before the answer has ended.",
    schema: { type: "string", examples: ["ex-3f2a91c04b7d"] },
  },
  "X-Next-Cursor": {
    description: "There while there is more: what to send as cursor for the next page.",
    schema: { type: "string", examples: ["1777888800000.sb-k3v9x0a1b2c3"] },
  },
  "Server-Timing": {
    description: "How long each stage took, in milliseconds.",
    schema: {
      type: "string",
      examples: [
        "admission;dur=0.31, wait;dur=0.01, launch;dur=3.80, configure;dur=0.70, provider;dur=4.60, commit;dur=0.28",
      ],
    },
  },
  "Retry-After": {
    description: "Seconds after which to try again; absent where it is not known that waiting helps.",
    schema: { type: "integer", examples: [1] },
  },
  "Idempotent-Replayed": {
    description: "There when an earlier request had this Idempotency-Key: the sandbox is that one's.",
    schema: { type: "string", const: "true" },
  },
  "Content-Range": {
    description: "Which bytes of how many; of a range behind the end how many there are.",
    schema: { type: "string", examples: ["bytes 0-99/1024", "bytes */1024"] },
  },
  Location: {
    description: "Path of what the answer is.",
    schema: { type: "string", format: "uri-reference", examples: ["/api/v1/sandboxes/sb-k3v9x0a1b2c3"] },
  },
  "X-RateLimit-Limit": {
    description: "Where rate_limit.enabled: how many requests at once.",
    schema: { type: "integer", examples: [100] },
  },
  "X-RateLimit-Remaining": {
    description: "Where rate_limit.enabled: how many of them are left.",
    schema: { type: "integer", examples: [99] },
  },
} as const satisfies Record<string, { description: string; schema: Record<string, unknown> }>;

export type AnswerHeader = keyof typeof answerHeaders;
