import { vi } from "vitest";
import { type EngineKind, startEngine } from "../../../test/support/docker-engine.ts";
import { openDocker } from "../../../test/support/docker-provider.ts";
import { firstMissing, type RequirementName } from "../../../test/support/requirements.ts";
import { providerContract } from "../../ports/contract/provider-contract.ts";

vi.setConfig({ testTimeout: 60_000 });

const engines = [
  ["docker with userns-remap", "remapped", ["docker"]],
  ["docker, rootless engine", "rootless", ["docker", "rootless"]],
  ["docker on Podman's socket", "podman", ["docker", "podman"]],
] as const satisfies [string, EngineKind, RequirementName[]][];

for (const [title, kind, needs] of engines)
  providerContract(title, {
    ...(await firstMissing([...needs, "agent", "busybox"])),
    brief: true,
    create: async () => {
      const engine = await startEngine({ kind });
      const docker = await openDocker(engine);
      return {
        ...docker,
        close: async () => {
          await docker.close();
          await engine[Symbol.asyncDispose]();
        },
      };
    },
  });
