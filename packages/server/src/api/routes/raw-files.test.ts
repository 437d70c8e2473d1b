import { Readable } from "node:stream";
import { fastify } from "fastify";
import { afterEach, expect, it } from "vitest";
import type { FileService } from "../../core/files/file-service.ts";
import { CallsUnderWay, decorateCallerSignal } from "../request-context.ts";
import { validatorCompiler } from "../validation.ts";
import { rawFileRoutes } from "./raw-files.ts";
import type { RouteApp } from "./route-app.ts";

let app: RouteApp | undefined;

afterEach(async () => {
  await app?.close();
});

it("an archive that breaks off breaks the response, so that nobody takes it for whole", async () => {
  async function* broken(): AsyncGenerator<Buffer> {
    yield Buffer.alloc(10_240, "x");
    throw new Error("the sandbox's disk failed");
  }
  const files = { archive: async () => Readable.from(broken(), { objectMode: false }) };
  app = fastify() as unknown as RouteApp;
  app.setValidatorCompiler(validatorCompiler);
  decorateCallerSignal(app as never, new CallsUnderWay());
  rawFileRoutes(app, { files: files as unknown as FileService });
  const address = await app.listen({ host: "127.0.0.1", port: 0 });
  const response = await fetch(`${address}/sandboxes/sb-x/files/archive?path=/`);
  expect(response.status).toBe(200);
  await expect(response.arrayBuffer()).rejects.toThrow();
});
