import { fastify } from "fastify";
import { afterEach, expect, it } from "vitest";
import { TurnWatch } from "../../../test/support/turn-watch.ts";
import { AnswerBudget } from "../../core/answers/answer-budget.ts";
import type { FileService } from "../../core/files/file-service.ts";
import { localUser } from "../../core/keys/principal.ts";
import { FairTurns } from "../../platform/fair-turns.ts";
import { silentLogger } from "../../platform/logger.ts";
import { systemClock } from "../../platform/system-clock.ts";
import type { FileEntry } from "../../ports/sandbox-operations.ts";
import { presentFile } from "../present.ts";
import { CallsUnderWay, decorateCallerSignal } from "../request-context.ts";
import { validatorCompiler } from "../validation.ts";
import { fileRoutes } from "./files.ts";
import type { RouteApp } from "./route-app.ts";

const mib = 1024 * 1024;
let app: RouteApp | undefined;

afterEach(async () => {
  await app?.close();
});

async function listen(files: object) {
  app = fastify() as unknown as RouteApp;
  app.setValidatorCompiler(validatorCompiler);
  app.addHook("onRequest", async (request) => void Object.assign(request, { principal: localUser }));
  app.decorate("turns", new FairTurns());
  decorateCallerSignal(app as never, new CallsUnderWay());
  const answers = new AnswerBudget({ totalBytes: 256 * mib, waitMs: 1_000, clock: systemClock });
  fileRoutes(app, { files: files as FileService, answers, logger: silentLogger });
  const address = await app.listen({ host: "127.0.0.1", port: 0 });
  const get = (path: string) =>
    fetch(`${address}/sandboxes/sb-x/files/${path}`, { signal: AbortSignal.timeout(20_000) });
  return { answers, address, get };
}

/** `extra` is no field of the answer. */
function entryOf(index: number): FileEntry & { extra: string } {
  return {
    name: `"f${index}"`,
    path: `/d/"f${index}"`,
    type: "file",
    size: index,
    mode: 0o644,
    uid: 0,
    gid: 0,
    modifiedAt: new Date(index * 1_000),
    extra: "not told",
  };
}

const entriesOf = (count: number) => Array.from({ length: count }, (_, index) => entryOf(index));

it.each([0, 1, 500, 501, 1_000, 1_001])(
  "a directory of %d entries is one list, however it is sent",
  async (count) => {
    const { get } = await listen({ list: async () => entriesOf(count) });
    const response = await get("list?path=/d");
    expect([response.status, response.headers.get("content-type")]).toEqual([
      200,
      "application/json; charset=utf-8",
    ]);
    expect(await response.json()).toEqual(entriesOf(count).map(presentFile));
  },
);

it("a directory of 60,000 entries holds nobody up while it is sent, and its memory until it was taken", async () => {
  const { answers, get } = await listen({
    list: async (_id: string, _path: string, { answer, signal }: Parameters<FileService["list"]>[2]) => {
      await answer?.grow("", 64 * mib, signal);
      return entriesOf(60_000);
    },
  });
  // Code that has run before.
  await (await get("list?path=/d")).arrayBuffer();
  await expect.poll(() => answers.heldBytes).toBe(0);
  using turns = new TurnWatch();
  const response = await get("list?path=/d");
  expect(answers.heldBytes).toBe(64 * mib);
  let bytes = 0;
  for await (const piece of response.body ?? []) bytes += piece.length;
  await new Promise((resolve) => setTimeout(resolve, 25));
  expect(bytes).toBeGreaterThan(6 * mib);
  expect(turns.longestMs).toBeLessThan(100);
  await expect.poll(() => answers.heldBytes).toBe(0);
});

it("a write on a condition is refused, and writes nothing", async () => {
  let written = 0;
  const { address } = await listen({
    write: async () => {
      written += 1;
    },
  });
  const write = (headers: Record<string, string>) =>
    fetch(`${address}/sandboxes/sb-x/files`, {
      method: "POST",
      body: JSON.stringify({ path: "/f", content: "x" }),
      headers: { "content-type": "application/json", ...headers },
    });
  expect((await write({ "if-none-match": "*" })).ok).toBe(false);
  expect(written).toBe(0);
  expect((await write({})).ok).toBe(true);
});
