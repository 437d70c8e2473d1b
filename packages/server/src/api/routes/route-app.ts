import { ExecId, UserName } from "@alcove/wire";
import type { TypeBoxTypeProvider } from "@fastify/type-provider-typebox";
import type {
  FastifyBaseLogger,
  FastifyInstance,
  FastifyReply,
  FastifyRequest,
  RawReplyDefaultExpression,
  RawRequestDefaultExpression,
  RawServerDefault,
} from "fastify";
import { Type } from "typebox";
import type { AnswerHeader } from "../answer-headers.ts";

declare module "fastify" {
  interface FastifySchema {
    summary?: string;
    description?: string;
    tags?: string[];
    operationId?: string;
    /** In no description: it carries whatever a program in a sandbox speaks. */
    hide?: boolean;
    /** For the OpenAPI page alone: content that Fastify neither validates nor serialises. */
    openapi?: {
      requestContent?: Record<string, unknown>;
      responses?: Record<string, { description: string; content?: Record<string, unknown> }>;
      /** By status: headers of its own, which not every answer has. */
      headers?: Readonly<Record<number, readonly AnswerHeader[]>>;
    };
  }
  interface FastifyContextConfig {
    /** Answered without a key. */
    open?: boolean;
  }
}

/** The app as route files see it: schemas give the types. */
export type RouteApp = FastifyInstance<
  RawServerDefault,
  RawRequestDefaultExpression,
  RawReplyDefaultExpression,
  FastifyBaseLogger,
  TypeBoxTypeProvider
>;

const SandboxId = Type.String({
  description: "Sandbox, as its spawn answered it.",
  examples: ["sb-k3v9x0a1b2c3"],
});
export const SandboxParams = Type.Object({ id: SandboxId });
export const ExecParams = Type.Object({
  id: SandboxId,
  execId: Type.String({
    ...ExecId,
    description: "`ex-` and 8 to 32 of [a-z0-9]. The command, as `exec_id` or X-Exec-ID named it.",
    examples: ["ex-3f2a91c04b7d"],
  }),
});
export const ChosenUser = Type.Optional(
  Type.String({ ...UserName, description: "Who owns what is created; default: the sandbox's user." }),
);

/** An operation's own path, and the one below `/admin` for those who administer, with the operation ids there. */
export function withAdmin(
  path: string,
): { path: string; admin: boolean; id: (operation: string) => string }[] {
  return [
    { path, admin: false, id: (operation) => operation },
    {
      path: `/admin${path}`,
      admin: true,
      id: (operation) => `admin${operation[0]?.toUpperCase()}${operation.slice(1)}`,
    },
  ];
}

/** For a body whose fields are all optional: no body at all means none of them. */
export async function emptyBody(request: FastifyRequest): Promise<void> {
  if (request.body === undefined) request.body = {};
}

/** Stages of an operation as a Server-Timing header. docs/api/README.md. */
export class ServerTiming {
  readonly #stages: string[] = [];

  readonly onStage = (stage: string, durationMs: number): void => {
    this.#stages.push(`${stage.replaceAll(/[^A-Za-z0-9_-]/g, "_")};dur=${durationMs.toFixed(2)}`);
  };

  apply(reply: FastifyReply): void {
    if (this.#stages.length > 0) reply.header("server-timing", this.#stages.join(", "));
  }
}
