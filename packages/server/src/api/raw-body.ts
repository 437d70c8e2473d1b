import { finished, Readable, type Transform } from "node:stream";
import {
  constants,
  createBrotliDecompress,
  createGunzip,
  createInflate,
  createZstdDecompress,
} from "node:zlib";
import type { FastifyRequest } from "fastify";
import type { BodyBudget } from "../core/answers/body-budget.ts";
import { BadRequest, DomainError } from "../ports/errors.ts";
import { shareOf } from "./share.ts";

interface Decoder {
  make: () => Transform;
  /** What it may hold until its body ends, however little was sent; absent: some kilobytes. */
  holdsBytes?: number;
}

const mebibyte = 1_048_576;
/** RFC 9659: whoever packs for HTTP goes back no further than 8 MiB. Unbounded it is 128 MiB, for four kilobytes that were sent. */
const zstdWindowLog = 23;
const windowTooLarge = "ZSTD_error_frameParameter_windowTooLarge";

const decoders: Readonly<Record<string, Decoder>> = {
  gzip: { make: createGunzip },
  "x-gzip": { make: createGunzip },
  deflate: { make: createInflate },
  br: { make: createBrotliDecompress, holdsBytes: 17 * mebibyte },
  zstd: {
    make: () => createZstdDecompress({ params: { [constants.ZSTD_d_windowLogMax]: zstdWindowLog } }),
    holdsBytes: 9 * mebibyte,
  },
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
  else yield* decoded(body, decoder.make());
}

/**
 * Waits for the memory that a raw body takes while it is unpacked.
 * @returns what gives it back. @throws Unavailable when there was none in time.
 */
export async function roomToUnpack(
  request: FastifyRequest,
  { memory, signal }: { memory: BodyBudget; signal: AbortSignal },
): Promise<Disposable> {
  const bytes = decoderOf(request.headers["content-encoding"])?.holdsBytes;
  let release: (() => void) | undefined;
  if (bytes !== undefined) {
    const held = memory.open((given) => (release = given), shareOf(request));
    try {
      await held.hold("", bytes, signal);
    } catch (error) {
      release?.();
      throw error;
    }
  }
  return { [Symbol.dispose]: () => release?.() };
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
    if (error instanceof Error && "code" in error && error.code === windowTooLarge)
      throw new BadRequest(
        "the body was packed with a window of more than 8 MiB; pack it without --long or --ultra",
        { cause: error },
      );
    throw new BadRequest("the body is not in the encoding that Content-Encoding names", { cause: error });
  } finally {
    stopWatching();
    body.unpipe(decoder);
    decoder.destroy();
  }
}

function decoderOf(header: string | string[] | undefined): Decoder | undefined {
  const encoding = nameOf(header);
  if (encoding === "identity") return undefined;
  const decoder = Object.hasOwn(decoders, encoding) ? decoders[encoding] : undefined;
  if (decoder === undefined) throw unsupported(encoding, `known are ${Object.keys(decoders).join(", ")}`);
  return decoder;
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
