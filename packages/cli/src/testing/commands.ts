import { afterEach, beforeEach, vi } from "vitest";
import { FakeService } from "./fake-service.ts";
import { runCli } from "./run-cli.ts";

/** Commands of the tests of one file, and the service in place of the real one that each test has for itself. */
export interface Commands {
  readonly service: FakeService;
  run(...args: string[]): ReturnType<typeof runCli>;
}

export function commandsOfTests(): Commands {
  // Each command is a process of its own, on a machine that may be busy.
  vi.setConfig({ testTimeout: 60_000 });
  let service: FakeService;
  beforeEach(async () => {
    service = await FakeService.start();
  });
  afterEach(() => service[Symbol.asyncDispose]());
  return {
    get service() {
      return service;
    },
    run: (...args) => runCli(args, { url: service.url }),
  };
}
