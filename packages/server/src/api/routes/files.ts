import {
  ChmodFileRequest,
  FileInfo,
  FilePath,
  MoveFileRequest,
  statusBody,
  WatchEvent,
  WriteFileRequest,
} from "@alcove/wire";
import { Type } from "typebox";
import type { AnswerBudget } from "../../core/answers/answer-budget.ts";
import type { FileService } from "../../core/files/file-service.ts";
import { parseMode } from "../../core/files/paths.ts";
import type { Logger } from "../../platform/logger.ts";
import { answered } from "../answers.ts";
import { takesContents } from "../body-limits.ts";
import { decodeContent, defined, given } from "../parse.ts";
import { presentFile } from "../present.ts";
import { sendList } from "../send-list.ts";
import { eventText, sendEventStream } from "../streams/sse.ts";
import { refuseConditions } from "../whole-writes.ts";
import { type RouteApp, SandboxParams } from "./route-app.ts";

const emptyForRoot = { minLength: 0, pattern: "^(?:/[^\\u0000]*)?$", default: "/" };
const PathQuery = Type.Object({ path: FilePath });
const ListQuery = Type.Object({ path: Type.Optional({ ...FilePath, ...emptyForRoot }) });
const DeleteQuery = Type.Object({
  path: FilePath,
  recursive: Type.Optional(Type.Boolean({ default: false })),
});
const WatchQuery = Type.Object({
  path: FilePath,
  recursive: Type.Optional(Type.Boolean({ default: false })),
});
const GlobQuery = Type.Object({
  pattern: Type.String({
    ...FilePath,
    description: "*, ?, […], {a,b} and **.",
    examples: ["/workspace/**/*.py"],
  }),
});

/** Files by name: written, listed, moved, removed. docs/api/files.md; contents as raw bytes are in raw-files.ts. */
export function fileRoutes(
  app: RouteApp,
  options: { files: FileService; answers: AnswerBudget; logger: Logger },
): void {
  const { files, answers, logger } = options;
  const tags = ["files"];

  app.route({
    method: "POST",
    url: "/sandboxes/:id/files",
    ...takesContents("PUT the bytes to the same path, which takes any size"),
    schema: {
      tags,
      operationId: "writeFile",
      summary: "Write a file",
      params: SandboxParams,
      body: WriteFileRequest,
      response: { 200: statusBody("written") },
    },
    handler: async (request, reply) => {
      const { path, content, encoding, mode, user } = request.body;
      refuseConditions(request);
      const bytes = decodeContent("content", content, encoding);
      const options = defined({
        mode: mode === undefined || mode === "" ? undefined : parseMode("mode", mode),
        user: given(user),
        signal: reply.callerSignal,
      });
      await files.write(request.params.id, path, once(bytes), options);
      return { status: "written" as const };
    },
  });

  app.route({
    method: "DELETE",
    url: "/sandboxes/:id/files",
    schema: {
      tags,
      operationId: "deleteFile",
      summary: "Delete a file, or a directory",
      params: SandboxParams,
      querystring: DeleteQuery,
      response: { 200: statusBody("deleted") },
    },
    handler: async (request, reply) => {
      const { path, recursive = false } = request.query;
      await files.remove(request.params.id, path, { recursive, signal: reply.callerSignal });
      return { status: "deleted" as const };
    },
  });

  app.route({
    method: "GET",
    url: "/sandboxes/:id/files/list",
    schema: {
      tags,
      operationId: "listFiles",
      summary: "What a directory holds",
      params: SandboxParams,
      querystring: ListQuery,
      response: { 200: Type.Array(FileInfo) },
    },
    handler: async (request, reply) => {
      const path = given(request.query.path) ?? "/";
      const entries = await answered(reply, answers, (answer) =>
        files.list(request.params.id, path, { signal: reply.callerSignal, answer }),
      );
      sendList(reply, entries, presentFile);
      return reply;
    },
  });

  app.route({
    method: "POST",
    url: "/sandboxes/:id/files/move",
    schema: {
      tags,
      operationId: "moveFile",
      summary: "Move a file or a directory",
      params: SandboxParams,
      body: MoveFileRequest,
      response: { 200: statusBody("moved") },
    },
    handler: async (request, reply) => {
      const { old_path: from, new_path: to } = request.body;
      await files.move(request.params.id, from, to, { signal: reply.callerSignal });
      return { status: "moved" as const };
    },
  });

  app.route({
    method: "POST",
    url: "/sandboxes/:id/files/chmod",
    schema: {
      tags,
      operationId: "chmodFile",
      summary: "Change permission bits",
      params: SandboxParams,
      body: ChmodFileRequest,
      response: { 200: statusBody("chmod applied") },
    },
    handler: async (request, reply) => {
      const mode = parseMode("mode", request.body.mode);
      await files.chmod(request.params.id, request.body.path, mode, { signal: reply.callerSignal });
      return { status: "chmod applied" as const };
    },
  });

  app.route({
    method: "GET",
    url: "/sandboxes/:id/files/stat",
    schema: {
      tags,
      operationId: "statFile",
      summary: "One file; a last symlink is described, not followed",
      params: SandboxParams,
      querystring: PathQuery,
      response: { 200: FileInfo },
    },
    handler: async (request, reply) =>
      presentFile(await files.stat(request.params.id, request.query.path, { signal: reply.callerSignal })),
  });

  app.route({
    method: "GET",
    url: "/sandboxes/:id/files/glob",
    schema: {
      tags,
      operationId: "globFiles",
      summary: "Paths that match a pattern",
      params: SandboxParams,
      querystring: GlobQuery,
      response: { 200: Type.Array(Type.String(), { examples: [["/workspace/main.py"]] }) },
    },
    handler: async (request, reply) => {
      const paths = await answered(reply, answers, (answer) =>
        files.glob(request.params.id, request.query.pattern, { signal: reply.callerSignal, answer }),
      );
      sendList(reply, paths, (path) => path);
      return reply;
    },
  });

  app.route({
    method: "GET",
    url: "/sandboxes/:id/files/watch",
    exposeHeadRoute: false,
    schema: {
      tags,
      operationId: "watchFiles",
      summary: "Changes below a path, as server-sent events",
      params: SandboxParams,
      querystring: WatchQuery,
      openapi: {
        responses: {
          200: {
            description: "One WatchEvent per event.",
            content: { "text/event-stream": { schema: WatchEvent } },
          },
        },
      },
    },
    handler: async (request, reply) => {
      const { path, recursive = false } = request.query;
      const signal = reply.endlessSignal;
      const changes = await files.watch(request.params.id, path, { recursive, signal });
      await sendEventStream(reply, asEvents(changes), { signal, logger });
      return reply;
    },
  });
}

async function* once(bytes: Uint8Array): AsyncGenerator<Uint8Array> {
  yield bytes;
}

async function* asEvents(changes: AsyncIterable<WatchEvent>): AsyncGenerator<string> {
  for await (const { type, path } of changes) yield eventText({ type, path });
}
