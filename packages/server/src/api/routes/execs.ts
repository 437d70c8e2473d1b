import {
  ExecRecord,
  ExecRequest,
  ExecResult,
  ExecTimeout,
  Lossless,
  OutputEncoding,
  OutputOffset,
  SignalRequest,
  StartExecRequest,
  StartExecResponse,
  StdinRequest,
  StdinResponse,
  statusBody,
} from "@alcove/wire";
import type { FastifyRequest } from "fastify";
import { Type } from "typebox";
import type { AnswerBudget } from "../../core/answers/answer-budget.ts";
import { ExecTimedOut } from "../../core/exec/buffered-exec.ts";
import type { ExecInput } from "../../core/exec/exec-input.ts";
import type { ExecService } from "../../core/exec/exec-service.ts";
import { WholeInput } from "../../core/exec/whole-input.ts";
import type { Logger } from "../../platform/logger.ts";
import { textLength } from "../../platform/text-length.ts";
import { BadRequest, TimedOut } from "../../ports/errors.ts";
import { answered } from "../answers.ts";
import { takesContents } from "../body-limits.ts";
import { decodeContent, defined } from "../parse.ts";
import { presentExec, presentListedExec, presentOutcome } from "../present.ts";
import { sendJson } from "../send-json.ts";
import { sendList } from "../send-list.ts";
import { sendExecStream } from "../streams/ndjson.ts";
import { takeBody } from "../take-body.ts";
import { execInput, stdinOf } from "./exec-input.ts";
import { ExecParams, emptyBody, type RouteApp, SandboxParams, ServerTiming } from "./route-app.ts";

const OutputQuery = Type.Object({
  from: Type.Optional(OutputOffset),
  follow: Type.Optional(
    Type.Boolean({ default: false, description: "Go on with what is written from now on." }),
  ),
  lossless: Type.Optional(Lossless),
  encoding: Type.Optional(OutputEncoding),
});

const ndjson = { "application/x-ndjson": { schema: { $ref: "#/components/schemas/ExecStreamChunk" } } };

/** What became of a command that ran into its deadline is told with the refusal. */
function withOutcome(error: unknown): never {
  if (!(error instanceof ExecTimedOut)) throw error;
  throw new TimedOut(error.message, { details: presentOutcome(error.outcome) });
}

/** A command may run for long: of its body its input is held alone, until it has that. */
function takeExec(request: Pick<FastifyRequest, "bodyMemory"> & { body: ExecRequest }) {
  return takeBody(request, {
    make: ({ stream, encoding, stdin, stdin_encoding, ...command }) => {
      const input = execInput(command);
      const bytes = stdinOf(defined({ stdin, stdin_encoding }));
      return { stream, encoding, input, whole: wholeInput(request, bytes, input) };
    },
    uses: ({ input, whole }) => memoryOf(input) + (whole?.length ?? 0),
  });
}

/** As `takeExec`, of a command that nobody reads. */
function takeStart(request: Pick<FastifyRequest, "bodyMemory"> & { body: StartExecRequest }) {
  return takeBody(request, {
    make: ({ stdin = true, stdin_encoding, ...command }) => {
      const input = execInput(command);
      const bytes = stdinOf(defined({ stdin, stdin_encoding }));
      return { input, open: stdin !== false, whole: wholeInput(request, bytes, input) };
    },
    uses: ({ input, whole }) => memoryOf(input) + (whole?.length ?? 0),
  });
}

function wholeInput(
  { bodyMemory }: Pick<FastifyRequest, "bodyMemory">,
  bytes: Uint8Array | undefined,
  input: ExecInput,
): WholeInput | undefined {
  if (bytes === undefined) return undefined;
  const rest = memoryOf(input);
  return new WholeInput(bytes, () => bodyMemory?.letGo(rest));
}

/** Input is held until its command has it, however long that takes: also when its caller has left, within what bodies may have in all. */
async function withInput<T>(
  { bodyMemory }: Pick<FastifyRequest, "bodyMemory">,
  whole: WholeInput | undefined,
  signal: AbortSignal,
  start: () => Promise<T>,
): Promise<T> {
  if (whole !== undefined) await bodyMemory?.keep(whole.length, signal);
  try {
    return await start();
  } finally {
    whole?.dropUnlessBegun();
  }
}

/** What a text takes beside its characters. */
const textBytes = 16;

/** About what a command takes, without its input. */
function memoryOf(input: ExecInput): number {
  const names = Object.keys(input.env ?? {});
  const texts = 2 * names.length + (input.args?.length ?? 0);
  return 2 * textLength([input, names]) + texts * textBytes;
}

/** Of the refusals that come when a command may have started. */
const refusedHeaders = { 404: ["X-Exec-ID"], 409: ["X-Exec-ID"], 503: ["X-Exec-ID"] } as const;

/** Run commands, and find them again. docs/api/exec.md. */
export function execRoutes(
  app: RouteApp,
  options: { execs: ExecService; answers: AnswerBudget; logger: Logger },
): void {
  const { execs, answers, logger } = options;
  const tags = ["exec"];

  app.route({
    method: "POST",
    url: "/sandboxes/:id/exec",
    ...takesContents("upload it as a file, or send the input over a WebSocket"),
    schema: {
      tags,
      operationId: "exec",
      summary: "Run a command: its result, or its output as NDJSON when stream is true",
      params: SandboxParams,
      body: ExecRequest,
      response: { 200: ExecResult, 408: ExecTimeout },
      openapi: {
        headers: { 200: ["X-Exec-ID", "Server-Timing"], ...refusedHeaders, 408: ["X-Exec-ID"] },
        responses: {
          200: { description: "The result, or the stream.", content: ndjson },
          408: { description: "Its deadline ended the command; what became of it is told as in a result." },
        },
      },
    },
    handler: async (request, reply) => {
      const { stream, encoding, input, whole } = takeExec(request);
      if (stream === true) {
        const signal = reply.endlessSignal;
        const startedMs = performance.now();
        const follow = await withInput(request, whole, signal, () =>
          execs.stream(request.params.id, input, { stdin: whole ?? false, signal }),
        );
        const headers = { "server-timing": `start;dur=${(performance.now() - startedMs).toFixed(2)}` };
        await sendExecStream(reply, follow, { signal, encoding, logger, headers });
        return reply;
      }
      const timing = new ServerTiming();
      const outcome = await answered(reply, answers, (answer) =>
        withInput(request, whole, reply.briefSignal, () =>
          execs.run(request.params.id, input, {
            ...defined({ stdin: whole, encoding }),
            signal: reply.briefSignal,
            answer,
            onStage: timing.onStage,
          }),
        ),
      ).catch(withOutcome);
      timing.apply(reply);
      reply.header("x-exec-id", outcome.execId);
      sendJson(reply, presentOutcome(outcome));
      return reply;
    },
  });

  app.route({
    method: "POST",
    url: "/sandboxes/:id/execs",
    ...takesContents("upload it as a file, or send the input in parts"),
    schema: {
      tags,
      operationId: "startExec",
      summary: "Start a command that outlives this connection",
      params: SandboxParams,
      body: StartExecRequest,
      response: { 201: StartExecResponse },
      openapi: { headers: { 201: ["X-Exec-ID"], ...refusedHeaders } },
    },
    handler: async (request, reply) => {
      const { input, open, whole } = takeStart(request);
      const signal = reply.callerSignal;
      const started = await withInput(request, whole, signal, () =>
        execs.startDetached(request.params.id, input, { stdin: whole ?? open, signal }),
      );
      reply.code(201).header("x-exec-id", started.execId);
      return { exec_id: started.execId, pid: started.pid };
    },
  });

  app.route({
    method: "GET",
    url: "/sandboxes/:id/execs",
    schema: {
      tags,
      operationId: "listExecs",
      summary: "Commands of a sandbox, running and ended, oldest first",
      params: SandboxParams,
      response: { 200: Type.Array(ExecRecord) },
    },
    handler: async (request, reply) => {
      const all = await execs.list(request.params.id, { signal: reply.callerSignal });
      sendList(reply, all, presentListedExec);
      return reply;
    },
  });

  app.route({
    method: "GET",
    url: "/sandboxes/:id/execs/:execId",
    schema: {
      tags,
      operationId: "getExec",
      summary: "One command",
      params: ExecParams,
      response: { 200: ExecRecord },
      openapi: { headers: { 200: ["X-Exec-ID"] } },
    },
    handler: async (request, reply) => {
      const { id, execId } = request.params;
      const info = await execs.get(id, execId, { signal: reply.callerSignal });
      reply.header("x-exec-id", info.execId);
      return presentExec(info);
    },
  });

  app.route({
    method: "GET",
    url: "/sandboxes/:id/execs/:execId/output",
    exposeHeadRoute: false,
    schema: {
      tags,
      operationId: "getExecOutput",
      summary: "Output of a command from an offset on, as NDJSON; with follow until its end",
      params: ExecParams,
      querystring: OutputQuery,
      openapi: {
        headers: { 200: ["X-Exec-ID"] },
        responses: { 200: { description: "Lines carry offset.", content: ndjson } },
      },
    },
    handler: async (request, reply) => {
      const { id, execId } = request.params;
      const { from = 0, follow: live = false, lossless = false, encoding } = request.query;
      const signal = reply.endlessSignal;
      const follow = await execs.output(id, execId, { from, follow: live, lossless, signal });
      await sendExecStream(reply, follow, { signal, encoding, logger });
      return reply;
    },
  });

  app.route({
    method: "POST",
    url: "/sandboxes/:id/execs/:execId/stdin",
    ...takesContents("send it in parts"),
    schema: {
      tags,
      operationId: "writeExecStdin",
      summary: "Write to the standard input of a command, and close it",
      params: ExecParams,
      body: StdinRequest,
      response: { 200: StdinResponse },
    },
    preValidation: emptyBody,
    handler: async (request, reply) => {
      const { id, execId } = request.params;
      const { bytes, close, input, offset } = takeBody(request, {
        make: ({ data = "", encoding, close = false, input, offset }) => {
          if (offset !== undefined && input === undefined)
            throw new BadRequest("offset is of an input with a name, and input gives none");
          return { bytes: decodeContent("data", data, encoding), close, input, offset };
        },
        uses: (made) => made.bytes.length,
      });
      const { taken } = await execs.writeStdin(id, execId, bytes, {
        close,
        signal: reply.callerSignal,
        ...defined({ input, offset }),
      });
      return { status: "written" as const, ...defined({ taken }) };
    },
  });

  app.route({
    method: "POST",
    url: "/sandboxes/:id/execs/:execId/signal",
    schema: {
      tags,
      operationId: "signalExec",
      summary: "Signal the process group of a command",
      params: ExecParams,
      body: SignalRequest,
      response: { 200: statusBody("signaled") },
    },
    handler: async (request, reply) => {
      const { id, execId } = request.params;
      await execs.signal(id, execId, request.body.signal, { signal: reply.callerSignal });
      return { status: "signaled" as const };
    },
  });

  app.route({
    method: "DELETE",
    url: "/sandboxes/:id/execs/:execId",
    schema: {
      tags,
      operationId: "killExec",
      summary: "Kill the whole process tree of a command",
      params: ExecParams,
      response: { 200: ExecRecord },
    },
    handler: async (request, reply) => {
      const { id, execId } = request.params;
      return presentExec(await execs.kill(id, execId, { signal: reply.callerSignal }));
    },
  });
}
