import { silentLogger } from "../../../src/platform/logger.ts";
import { systemClock } from "../../../src/platform/system-clock.ts";
import type { RuntimeSpec } from "../../../src/ports/index.ts";
import { DockerProvider, type DockerProviderOptions } from "../../../src/providers/docker/index.ts";

/** A stand-in for the service, to be killed: spawns what its argument says and tells each step on a line. */
const order: {
  options: Omit<DockerProviderOptions, "logger" | "clock">;
  specs: RuntimeSpec[];
  script: string;
} = JSON.parse(process.argv[2] ?? "");
const provider = new DockerProvider({ ...order.options, logger: silentLogger, clock: systemClock });
const { signal } = new AbortController();
console.log("started");
for (const spec of order.specs) {
  await provider.spawn(spec, { signal });
  const { execs } = provider.sandbox(spec.runtimeId);
  await execs.startDetached(
    {
      execId: "ex-survivor1" as Parameters<typeof execs.get>[0],
      command: order.script,
      args: [],
      argv: ["/bin/sh", "-c", order.script],
      env: {},
      stdin: true,
      timeoutMs: 600_000,
      detached: true,
    },
    { signal },
  );
  console.log(`spawned ${spec.runtimeId}`);
}
// The commands' connections keep it alive until it is killed.
setInterval(() => undefined, 60_000);
