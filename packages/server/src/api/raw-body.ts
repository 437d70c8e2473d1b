import { finished, Readable, type Transform } from "node:stream";
import { createBrotliDecompress, createGunzip, createInflate, createZstdDecompress } from "node:zlib";
import type { FastifyRequest } from "fastify";
import { BadRequest, DomainError } from "../ports/errors.ts";

const decoders: Readonly<Record<string, () => Transform>> = {
  gzip: createGunzip,
  "x-gzip": createGunzip,
  deflate: createInflate,
  br: createBrotliDecompress,
  zstd: createZstdDecompress,
};

/**
 * The bytes of a raw body, unpacked when its Content-Encoding says that they are packed; limits count what comes out. No
 * body at all is an empty one. Nobody else keeps a piece: Node's parser and its decoders make each anew. Who stops reading leaves the connection open, so that the refusal can be answered.
 * @throws DomainError `unsupported_media_type` for another encoding; BadRequest for what is not in its encoding.
 */
export async function* rawBody(request: FastifyRequest): AsyncGenerator<Uint8Array> {
  const decoder = decoderOf(request.headers["content-encoding"]);
  const { body } = request;
  if (!(body instanceof Readable)) return;
  if (decoder === undefined) yield* body.iterator({ destroyOnReturn: false });
  else yield* decoded(body, decoder);
}

/** @returns why a body that is read whole is refused, undefined when it comes as it is. */
export function encodingRefusal(request: FastifyRequest): DomainError | undefined {
  const encoding = nameOf(request.headers["content-encoding"]);
  return encoding === "identity" ? undefined : unsupported(encoding, "JSON is taken as it is");
}

async function* decoded(body: Readable, decoder: Transform): AsyncGenerator<Uint8Array> {
  const stopWatching = finished(body, { writable: false }, (error) => {
    if (error) decoder.destroy(error);
  });
  body.pipe(decoder);
  try {
    yield* decoder;
  } catch (error) {
    if (body.errored !== null) throw error;
    throw new BadRequest("the body is not in the encoding that Content-Encoding names", { cause: error });
  } finally {
    stopWatching();
    body.unpipe(decoder);
    decoder.destroy();
  }
}

function decoderOf(header: string | string[] | undefined): Transform | undefined {
  const encoding = nameOf(header);
  if (encoding === "identity") return undefined;
  const make = Object.hasOwn(decoders, encoding) ? decoders[encoding] : undefined;
  if (make === undefined) throw unsupported(encoding, `known are ${Object.keys(decoders).join(", ")}`);
  return make();
}

function nameOf(header: string | string[] | undefined): string {
  return (
    String(header ?? "")
      .trim()
      .toLowerCase() || "identity"
  );
}

function unsupported(encoding: string, known: string): DomainError {
  return new DomainError(
    "unsupported_media_type",
    `Content-Encoding ${JSON.stringify(encoding.slice(0, 64))} is not supported here: ${known}`,
  );
}
