import { Readable } from "node:stream";
import { constants, gzipSync, zstdCompressSync } from "node:zlib";
import { fastify } from "fastify";
import { afterEach, expect, it } from "vitest";
import { BodyBudget } from "../../core/answers/body-budget.ts";
import type { FileService } from "../../core/files/file-service.ts";
import { localUser } from "../../core/keys/principal.ts";
import { JoinedReadable } from "../../platform/joined-readable.ts";
import { systemClock } from "../../platform/system-clock.ts";
import { CallsUnderWay, decorateCallerSignal } from "../request-context.ts";
import { validatorCompiler } from "../validation.ts";
import { rawFileRoutes } from "./raw-files.ts";
import type { RouteApp } from "./route-app.ts";

let app: RouteApp | undefined;

afterEach(async () => {
  await app?.close();
});

const words = { why: "full", advice: "use gzip" };
/** An owner's half of it has room to unpack four bodies packed with zstd, and two with br. */
const memory = () =>
  new BodyBudget({
    totalBytes: 72 * 1_048_576,
    waitMs: 100,
    clock: systemClock,
    refusals: { tooLarge: String, full: words, shareFull: words },
  });

async function listen(files: object, unpacking = memory()): Promise<string> {
  app = fastify() as unknown as RouteApp;
  app.setValidatorCompiler(validatorCompiler);
  decorateCallerSignal(app as never, new CallsUnderWay());
  app.decorateRequest("principal", { getter: () => localUser });
  rawFileRoutes(app, { files: files as FileService, unpacking });
  return app.listen({ host: "127.0.0.1", port: 0 });
}

/** A file that is `size` bytes long when it is looked at and `then` when it is read; null: of no size that counts. */
function changing(size: number, then: number | null): object {
  const info = (bytes: number) => ({ size: bytes, modifiedAt: new Date(0) });
  return {
    target: async () => info(size),
    read: async (_id: string, _path: string, { offset = 0, length = 1_000 }) => {
      const sent = then === null ? null : Math.max(0, Math.min(length, then - offset));
      return { info: info(then ?? size), length: sent, body: Readable.from([Buffer.alloc(sent ?? 3)]) };
    },
  };
}

it("a range of a file that changes meanwhile tells what is sent, and is none where nothing is left", async () => {
  const get = async (size: number, then: number | null) => {
    const address = await listen(changing(size, then));
    const response = await fetch(`${address}/sandboxes/sb-x/files?path=/f`, {
      headers: { range: "bytes=2-9" },
      signal: AbortSignal.timeout(10_000),
    });
    const { byteLength } = await response.arrayBuffer();
    await app?.close();
    return [response.status, response.headers.get("content-range"), response.ok ? byteLength : "refused"];
  };
  expect(await get(10, 10)).toEqual([206, "bytes 2-9/10", 8]);
  expect(await get(10, 5)).toEqual([206, "bytes 2-4/5", 3]);
  expect((await get(10, 2)).slice(1)).toEqual(["bytes */2", "refused"]);
  expect(await get(4_096, null)).toEqual([200, null, 3]);
});

it("an archive that breaks off breaks the response, so that nobody takes it for whole", async () => {
  async function* broken(): AsyncGenerator<Buffer> {
    yield Buffer.alloc(10_240, "x");
    throw new Error("the sandbox's disk failed");
  }
  const archive = async () => Readable.from(broken(), { objectMode: false });
  const address = await listen({ archive });
  const response = await fetch(`${address}/sandboxes/sb-x/files/archive?path=/`);
  expect(response.status).toBe(200);
  await expect(response.arrayBuffer()).rejects.toThrow();
});

it("the memory of what an agent sent is given back once it was written", async () => {
  const pieces = Array.from({ length: 40 }, (_, index) => Buffer.from(new ArrayBuffer(65_536)).fill(index));
  const waiting = [...pieces];
  const body = new JoinedReadable({
    highWaterMark: 131_072,
    goOn: () => {
      const piece = waiting.shift();
      if (piece === undefined) body.finish();
      else body.give(piece);
    },
  });
  const address = await listen({ archive: async () => body });
  const response = await fetch(`${address}/sandboxes/sb-x/files/archive?path=/`);
  const bytes = Buffer.from(await response.arrayBuffer());
  expect(bytes.length).toBe(40 * 65_536);
  for (let index = 0; index < 40; index += 1) expect(bytes[index * 65_536 + 17]).toBe(index);
  expect(pieces.map(({ buffer }) => buffer.byteLength)).toEqual(pieces.map(() => 0));
});

it("nobody keeps the pieces of an upload", async () => {
  const told: unknown[] = [];
  const take = async (_id: string, _path: string, body: AsyncIterable<Uint8Array>, options: object) => {
    for await (const piece of body) told.push(piece.length);
    told.push("spends" in options && options.spends);
    return { entries: 0 };
  };
  const address = await listen({ write: take, unpack: take });
  for (const url of ["files?path=/f", "files/archive?path=/d"])
    await fetch(`${address}/sandboxes/sb-x/${url}`, { method: "PUT", body: "abc" });
  expect(told).toEqual([3, true, 3, true]);
});

it.each([
  ["is a part of something", "content-range", "bytes 6-9/10"],
  ["is wanted where nothing is yet", "if-none-match", "*"],
  ["is wanted in place of a version", "if-match", '"1"'],
])("a body that says it %s is refused, and replaces nothing", async (_, header, value) => {
  const written: string[] = [];
  const take = async (_id: string, path: string) => {
    written.push(path);
    return { entries: 0 };
  };
  const address = await listen({ write: take, unpack: take });
  for (const url of ["files?path=/f", "files/archive?path=/d"]) {
    const response = await fetch(`${address}/sandboxes/sb-x/${url}`, {
      method: "PUT",
      body: "6789",
      headers: { [header]: value },
    });
    expect([response.ok, await response.text()]).toEqual([
      false,
      expect.stringContaining(JSON.stringify(JSON.stringify(value)).slice(1, -1)),
    ]);
  }
  expect(written).toEqual([]);
});

const put = (address: string, body: Buffer, encoding: string) =>
  fetch(`${address}/sandboxes/sb-x/files?path=/f`, {
    method: "PUT",
    body: new Uint8Array(body),
    headers: { "content-encoding": encoding },
  });

it("a body that may be unpacked with little memory alone is taken: its window is 8 MiB at most", async () => {
  const sizes: number[] = [];
  const write = async (_id: string, _path: string, body: AsyncIterable<Uint8Array>) => {
    let size = 0;
    for await (const piece of body) size += piece.length;
    sizes.push(size);
  };
  const address = await listen({ write });
  const plain = Buffer.alloc(40 * 2 ** 20);
  const packed = (level: number) =>
    zstdCompressSync(plain, { params: { [constants.ZSTD_c_compressionLevel]: level } });
  expect((await put(address, packed(19), "zstd")).status).toBe(200);
  expect(sizes).toEqual([plain.length]);
  const refused = await put(address, packed(22), "zstd");
  expect([refused.ok, await refused.text()]).toEqual([false, expect.stringContaining("more than 8 MiB")]);
});

it.each([
  ["zstd", 4],
  ["br", 2],
])(
  "so many bodies are unpacked at once as there is memory: of %s %i, and more once one has ended",
  async (coding, most) => {
    const under: (() => void)[] = [];
    const write = () => new Promise<void>((resolve) => under.push(resolve));
    const budget = memory();
    const address = await listen({ write }, budget);
    const body = Buffer.from("never read");
    const first = Array.from({ length: most }, () => put(address, body, coding));
    await expect.poll(() => under.length).toBe(most);
    const refused = await put(address, body, coding);
    expect([refused.ok, await refused.text()]).toEqual([false, expect.stringContaining("use gzip")]);
    // What takes some kilobytes is not counted.
    const plain = put(address, gzipSync(body), "gzip");
    await expect.poll(() => under.length).toBe(most + 1);
    under[0]?.();
    expect((await first[0])?.status).toBe(200);
    const next = put(address, body, coding);
    await expect.poll(() => under.length).toBe(most + 2);
    for (const end of under) end();
    for (const { status } of await Promise.all([...first, plain, next])) expect(status).toBe(200);
    expect(budget.heldBytes).toBe(0);
  },
);
