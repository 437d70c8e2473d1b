import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import path from "node:path";
import { afterEach, beforeEach, vi } from "vitest";
import { FakeService } from "./fake-service.ts";
import { runCli } from "./run-cli.ts";

/** Commands of the tests of one file; the service in place of the real one, and the folder, that each test has for itself. */
export interface Commands {
  readonly service: FakeService;
  /** Where commands run. */
  readonly dir: string;
  run(...args: string[]): ReturnType<typeof runCli>;
}

export function commandsOfTests(): Commands {
  // Each command is a process of its own, on a machine that may be busy.
  vi.setConfig({ testTimeout: 60_000 });
  let service: FakeService;
  let dir: string;
  beforeEach(async () => {
    service = await FakeService.start();
    dir = await mkdtemp(path.join(tmpdir(), "alcove-cli-"));
  });
  afterEach(async () => {
    await service[Symbol.asyncDispose]();
    await rm(dir, { recursive: true, force: true });
  });
  return {
    get service() {
      return service;
    },
    get dir() {
      return dir;
    },
    run: (...args) => runCli(args, { url: service.url, cwd: dir }),
  };
}
