import { expect, it, vi } from "vitest";
import { attackColumn, attacksAs } from "../../../test/support/attack-table.ts";
import { type EngineKind, startEngine } from "../../../test/support/docker-engine.ts";
import { containerOf, openDocker } from "../../../test/support/docker-provider.ts";
import { describeWith, type RequirementName } from "../../../test/support/requirements.ts";
import { soon } from "../../ports/contract/provider/harness.ts";

vi.setConfig({ testTimeout: 120_000 });

const engines: [EngineKind, RequirementName[]][] = [
  ["remapped", ["docker"]],
  ["rootless", ["docker", "rootless"]],
  ["podman", ["docker", "podman"]],
];

for (const [kind, needs] of engines)
  await describeWith(
    [...needs, "agent", "busybox", "compiler"],
    `attacks on an engine that is ${kind}`,
    () => {
      it("what gets through is what the table of attacks says of docker", async () => {
        await using engine = await startEngine({ kind });
        const docker = await openDocker(engine);
        const spec = containerOf({ image: docker.image });
        try {
          await docker.provider.spawn(spec, soon(30_000));
          const sandbox = docker.provider.sandbox(spec.runtimeId);
          expect(await attacksAs(sandbox, ["0", "app"])).toEqual(attackColumn("docker"));
        } finally {
          await docker.provider.destroy(spec.runtimeId, soon(30_000));
          await docker.close();
        }
      });
    },
  );
