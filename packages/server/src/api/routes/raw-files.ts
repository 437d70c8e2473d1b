import type { Readable, Writable } from "node:stream";
import { FilePath, OptionalFileMode, statusBody, UnpackResult } from "@alcove/wire";
import type { FastifyReply } from "fastify";
import { Type } from "typebox";
import type { BodyBudget } from "../../core/answers/body-budget.ts";
import type { FileService } from "../../core/files/file-service.ts";
import { parseMode } from "../../core/files/paths.ts";
import { carry } from "../../platform/carry.ts";
import { JoinedReadable } from "../../platform/joined-readable.ts";
import { DomainError } from "../../ports/errors.ts";
import { defined, given } from "../parse.ts";
import { tellableTime } from "../present.ts";
import { parseRange } from "../range.ts";
import { rawBody, roomToUnpack } from "../raw-body.ts";
import { refuseConditions } from "../whole-writes.ts";
import { ChosenUser, type RouteApp, SandboxParams } from "./route-app.ts";

const PathQuery = Type.Object({ path: FilePath });
const ReadHeaders = Type.Object({
  range: Type.Optional(
    Type.String({
      description: "One range of bytes; anything else is answered with the whole file.",
      examples: ["bytes=0-99"],
    }),
  ),
});
const PutQuery = Type.Object({
  path: FilePath,
  mode: Type.Optional(OptionalFileMode),
  user: ChosenUser,
});
const UnpackQuery = Type.Object({ path: FilePath, user: ChosenUser });
const anyBytes = { "application/octet-stream": { schema: { type: "string", format: "binary" } } };
const tar = { "application/x-tar": { schema: { type: "string", format: "binary" } } };

/** File contents and directories as streams of bytes; neither side is ever held in memory. docs/api/files.md. */
export function rawFileRoutes(app: RouteApp, options: { files: FileService; unpacking: BodyBudget }): void {
  const { files, unpacking: memory } = options;
  const tags = ["files"];
  // In this scope every body is a stream, whatever its type says.
  app.removeAllContentTypeParsers();
  app.addContentTypeParser("*", (_request, payload, done) => done(null, payload));

  app.route({
    method: "GET",
    url: "/sandboxes/:id/files",
    exposeHeadRoute: false,
    schema: {
      tags,
      operationId: "readFile",
      summary: "The bytes of a file; honours Range",
      params: SandboxParams,
      headers: ReadHeaders,
      querystring: PathQuery,
      openapi: {
        headers: { 206: ["Content-Range"], 416: ["Content-Range"] },
        responses: {
          200: { description: "The file.", content: anyBytes },
          206: { description: "The range asked for.", content: anyBytes },
          416: {
            description: "The file ends before the range begins.",
            content: { "application/json": { schema: { $ref: "#/components/schemas/Error" } } },
          },
        },
      },
    },
    handler: async (request, reply) => {
      const { path } = request.query;
      const signal = reply.transferSignal;
      const { range: header, "if-range": condition } = request.headers;
      const range = header === undefined || condition !== undefined ? undefined : parseRange(header);
      const whole = async () => {
        const { info, length, body } = await files.read(request.params.id, path, { signal });
        if (length !== null) reply.header("content-length", length);
        return sendBytes(reply, body, info.modifiedAt);
      };
      if (range === undefined) return whole();
      const { size, type } = await files.target(request.params.id, path, { signal });
      // Whose size means nothing: it is refused for what it is.
      if (type === "dir") return whole();
      const part = range.within(size);
      if (part === undefined) {
        if (size > 0) throw behindTheEnd(reply, size);
        const all = await files.read(request.params.id, path, { signal });
        // As in /proc: what is not known to have an end has none that a range could begin behind.
        if (all.length === null) return sendBytes(reply, all.body, all.info.modifiedAt);
        all.body.destroy();
        throw behindTheEnd(reply, size);
      }
      const { info, length, body } = await files.read(request.params.id, path, { ...part, signal });
      if (length === 0) {
        // It became shorter since it was looked at.
        body.destroy();
        throw behindTheEnd(reply, info.size);
      }
      if (length === null) {
        // A file whose size says nothing: which part there is, is not known in advance.
        body.destroy();
        return whole();
      }
      reply.code(206);
      reply.header("content-range", `bytes ${part.offset}-${part.offset + length - 1}/${info.size}`);
      reply.header("content-length", length);
      return sendBytes(reply, body, info.modifiedAt);
    },
  });

  app.route({
    method: "PUT",
    url: "/sandboxes/:id/files",
    schema: {
      tags,
      operationId: "uploadFile",
      summary: "Write a file from the raw body",
      params: SandboxParams,
      querystring: PutQuery,
      response: { 200: statusBody("written") },
      openapi: { requestContent: anyBytes },
    },
    handler: async (request, reply) => {
      const { path, mode, user } = request.query;
      refuseConditions(request);
      const options = defined({
        mode: mode === undefined || mode === "" ? undefined : parseMode("mode", mode),
        user: given(user),
        signal: reply.transferSignal,
        spends: true,
      });
      using _room = await roomToUnpack(request, { memory, signal: options.signal });
      await files.write(request.params.id, path, rawBody(request), options);
      return { status: "written" as const };
    },
  });

  app.route({
    method: "GET",
    url: "/sandboxes/:id/files/archive",
    exposeHeadRoute: false,
    schema: {
      tags,
      operationId: "readArchive",
      summary: "A tar of what is below a path",
      params: SandboxParams,
      querystring: PathQuery,
      openapi: { responses: { 200: { description: "The tar.", content: tar } } },
    },
    handler: async (request, reply) => {
      const signal = reply.transferSignal;
      const { path } = request.query;
      const body = await files.archive(request.params.id, path, { signal });
      return reply
        .header("x-content-type-options", "nosniff")
        .type("application/x-tar")
        .send(givingBack(body));
    },
  });

  app.route({
    method: "PUT",
    url: "/sandboxes/:id/files/archive",
    schema: {
      tags,
      operationId: "writeArchive",
      summary: "Unpack a tar below a path",
      params: SandboxParams,
      querystring: UnpackQuery,
      response: { 200: UnpackResult },
      openapi: { requestContent: tar },
    },
    handler: async (request, reply) => {
      const { path, user } = request.query;
      refuseConditions(request);
      const options = defined({ user: given(user), signal: reply.transferSignal, spends: true });
      using _room = await roomToUnpack(request, { memory, signal: options.signal });
      const { entries } = await files.unpack(request.params.id, path, rawBody(request), options);
      return { status: "unpacked" as const, entries };
    },
  });
}

function behindTheEnd(reply: FastifyReply, size: number): DomainError {
  reply.header("content-range", `bytes */${size}`);
  return new DomainError(
    "range_not_satisfiable",
    `the file has ${size} bytes; the range ${JSON.stringify(reply.request.headers.range)} begins behind its end`,
  );
}

function sendBytes(reply: FastifyReply, body: Readable, modifiedAt: Date): FastifyReply {
  return reply
    .header("accept-ranges", "bytes")
    .header("last-modified", tellableTime(modifiedAt).toUTCString())
    .header("x-content-type-options", "nosniff")
    .type("application/octet-stream")
    .send(givingBack(body));
}

/** Fastify pipes a body into the response. Nobody else has the pieces of one that an agent sends: each is given back once it was written. */
function givingBack(body: Readable): Readable {
  if (body instanceof JoinedReadable)
    body.pipe = <To extends NodeJS.WritableStream>(to: To): To => {
      carry(body, to as NodeJS.WritableStream as Writable, { spends: true });
      return to;
    };
  return body;
}
