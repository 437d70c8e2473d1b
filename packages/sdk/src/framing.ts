import type { OutgoingHttpHeaders } from "node:http";
import { type Readable, Transform } from "node:stream";
import { type AlcoveError, clientError } from "./errors.ts";

/** From the last of the announced bytes until the stream's end. A program that writes one may take its time to end. */
const endMs = 30_000;

/**
 * Says where the body ends, in place of what the caller's headers say and Node makes of them: bytes behind that end would
 * run as the next request of the connection. Node sends a stream with GET, HEAD or DELETE without any end.
 * @returns how many bytes a stream is to have, where the caller has said it.
 * @throws AlcoveError `bad_request` for a length that is none, or without a body.
 */
export function frameBody(
  headers: OutgoingHttpHeaders,
  body: Readable | Uint8Array | undefined,
): number | undefined {
  const announced = headers["content-length"];
  delete headers["content-length"];
  delete headers["transfer-encoding"];
  if (body instanceof Uint8Array) {
    headers["content-length"] = body.byteLength;
    return undefined;
  }
  if (announced === undefined) {
    if (body !== undefined) headers["transfer-encoding"] = "chunked";
    return undefined;
  }
  const length = /^\d+$/.test(String(announced)) ? Number(announced) : Number.NaN;
  if (!Number.isSafeInteger(length))
    throw clientError("bad_request", `${JSON.stringify(announced)} is not a length of a body`);
  if (body === undefined && length > 0)
    throw clientError("bad_request", `a body of ${length} bytes is announced and none given`);
  headers["content-length"] = length;
  return length;
}

/**
 * Passes on a body that has as many bytes as announced. What completes it is held back until it ends: the service takes
 * nothing for whole that goes on. One that neither goes on nor ends fails.
 * @param onMismatch is told before anything is destroyed.
 */
export function exactly(length: number, onMismatch: (error: AlcoveError) => void): Transform {
  let count = 0;
  let last: Buffer | undefined;
  let timer: NodeJS.Timeout | undefined;
  const fault = (has: string) => {
    const error = clientError("bad_request", `the body has ${has}`);
    onMismatch(error);
    return error;
  };
  const mismatch = (has: string) => fault(`${has} than the ${length} bytes announced for it`);
  const awaitEnd = () => {
    const has = `the ${length} bytes announced for it and has not ended ${endMs / 1_000} s later: a stream must end`;
    timer = setTimeout(() => stream.destroy(fault(has)), endMs);
  };
  const stream = new Transform({
    transform(chunk: Buffer, _encoding, done) {
      if (chunk.length === 0) return done();
      count += chunk.length;
      if (count > length) return done(mismatch("more"));
      if (count < length) return done(null, chunk);
      last = chunk;
      awaitEnd();
      done();
    },
    flush(done) {
      clearTimeout(timer);
      if (count < length) done(mismatch("less"));
      else done(null, last);
    },
    destroy(error, done) {
      clearTimeout(timer);
      done(error);
    },
  });
  if (length === 0) awaitEnd();
  return stream;
}
