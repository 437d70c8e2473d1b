import { Readable } from "node:stream";
import { expect, test } from "vitest";
import { silentLogger } from "../../platform/logger.ts";
import { Conflict, RuntimeGone } from "../../ports/errors.ts";
import { OperationMetrics } from "../diagnostics/operation-metrics.ts";
import { FakeSandbox } from "../exec/testing/fake-sandbox.ts";
import type { RunningSandbox } from "../sandboxes/live-sandboxes.ts";
import { FakeClock } from "../testing/fake-clock.ts";
import { FileService } from "./file-service.ts";

const { signal } = new AbortController();

test("an operation that meets the end of its sandbox is told that, not what its provider says", async () => {
  const { target } = new FakeSandbox();
  const ending = new Conflict("sandbox is being destroyed");
  let ended = false;
  const stat = async () => {
    ended = true;
    throw new RuntimeGone("sandbox sb-1 has ended");
  };
  Object.assign(target.operations, { files: { stat } });
  const files = new FileService({
    sandboxes: {
      locate: async () => {
        if (ended) throw ending;
        return target as RunningSandbox;
      },
    },
    events: { emit: () => undefined },
    operations: new OperationMetrics({ clock: new FakeClock(), providers: [] }),
    maxUploadBytes: 0,
    logger: silentLogger,
  });
  await expect(files.stat("sb-1", "/etc/passwd", { signal })).rejects.toBe(ending);
});

test("what is written is named: a path that only names a directory is refused before anything is asked", () => {
  const files = new FileService({
    sandboxes: { locate: () => Promise.reject(new Error("it was asked for")) },
    events: { emit: () => undefined },
    operations: new OperationMetrics({ clock: new FakeClock(), providers: [] }),
    maxUploadBytes: 0,
    logger: silentLogger,
  });
  for (const path of ["/workspace/new/", "/workspace/new/.", "/"]) {
    const write = () => files.write("sb-1", path, Readable.from([]), { signal });
    expect(write).toThrow(`path "${path}" names a directory`);
  }
});
