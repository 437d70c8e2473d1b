import { spawn } from "node:child_process";
import { type Duplex, pipeline, Readable } from "node:stream";
import { createGunzip, createZstdDecompress } from "node:zlib";
import { spawned } from "../platform/spawned.ts";
import { BadRequest, ProviderError } from "../ports/errors.ts";

const magic = {
  gzip: Buffer.from([0x1f, 0x8b]),
  zstd: Buffer.from([0x28, 0xb5, 0x2f, 0xfd]),
  xz: Buffer.from([0xfd, 0x37, 0x7a, 0x58, 0x5a, 0x00]),
};

/** Undoes gzip, zstd or xz, told by the first bytes; what is none of them passes unchanged. */
export async function* decompressed(
  source: AsyncIterable<Uint8Array>,
  options: { signal: AbortSignal },
): AsyncGenerator<Uint8Array> {
  const iterator = source[Symbol.asyncIterator]();
  let head: Buffer = Buffer.alloc(0);
  while (head.length < 6) {
    const next = await iterator.next();
    if (next.done === true) break;
    head = Buffer.concat([head, next.value]);
  }
  async function* whole(): AsyncGenerator<Uint8Array> {
    if (head.length > 0) yield head;
    for (let next = await iterator.next(); next.done !== true; next = await iterator.next()) yield next.value;
  }
  const startsWith = (bytes: Buffer) => head.subarray(0, bytes.length).equals(bytes);
  if (startsWith(magic.gzip)) yield* inflated(whole(), createGunzip(), "gzip");
  else if (startsWith(magic.zstd)) yield* inflated(whole(), createZstdDecompress(), "zstd");
  else if (startsWith(magic.xz)) yield* throughXz(whole(), options.signal);
  else yield* whole();
}

async function* inflated(
  source: AsyncIterable<Uint8Array>,
  decoder: Duplex,
  format: string,
): AsyncGenerator<Uint8Array> {
  // A failure of either end destroys the decoder with it, and so reaches the loop below.
  const fed = pipeline(Readable.from(source), decoder, () => undefined);
  try {
    yield* fed;
  } catch (error) {
    const code = error instanceof Error && "code" in error ? String(error.code) : "";
    if (!code.startsWith("Z_") && !code.startsWith("ZSTD_")) throw error;
    throw new BadRequest(`the archive's ${format} compression is damaged or cut short`, { cause: error });
  }
}

/** An archive says how much its decoder is to keep, up to 1.5 GiB; what xz itself makes takes 65 MiB at most, unless it is told otherwise. */
const xzMemory = "--memlimit-decompress=256MiB";

/** xz has no decoder in Node; the program of the package xz-utils does it. */
async function* throughXz(
  source: AsyncIterable<Uint8Array>,
  signal: AbortSignal,
): AsyncGenerator<Uint8Array> {
  const program = await spawned(spawn("xz", ["-dc", xzMemory], { stdio: ["pipe", "pipe", "pipe"], signal }), {
    signal,
  }).catch((error: unknown) => {
    if (error instanceof Error && "code" in error && error.code === "ENOENT")
      throw new ProviderError(
        "an archive compressed with xz needs the program xz (Debian package xz-utils)",
        { cause: error },
      );
    throw error;
  });
  const ended = Promise.withResolvers<number | null>();
  program.on("error", (error) => ended.reject(error));
  program.on("close", (code) => ended.resolve(code));
  ended.promise.catch(() => undefined);
  let stderr = "";
  program.stderr.setEncoding("utf8").on("data", (part: string) => {
    if (stderr.length < 2_000) stderr += part;
  });
  const feeding = Readable.from(source).pipe(program.stdin);
  // A program that ends early breaks the pipe; its exit code tells why.
  feeding.on("error", () => program.kill());
  try {
    yield* program.stdout;
    const code = await ended.promise;
    if (code !== 0) throw new BadRequest(`the archive's xz compression is damaged: ${stderr.trim()}`);
  } finally {
    program.kill();
  }
}
