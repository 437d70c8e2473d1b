import { vi } from "vitest";
import { type EngineKind, startEngine } from "../../../test/support/docker-engine.ts";
import { openDocker } from "../../../test/support/docker-provider.ts";
import { firstMissing } from "../../../test/support/requirements.ts";
import { providerContract } from "../../ports/contract/provider-contract.ts";

vi.setConfig({ testTimeout: 60_000 });

const engines = {
  "docker with userns-remap": { kind: "remapped", needs: ["docker"] },
  "docker, rootless engine": { kind: "rootless", needs: ["docker", "rootless"] },
  "docker on Podman's socket": { kind: "podman", needs: ["docker", "podman"] },
} as const satisfies Record<string, { kind: EngineKind; needs: readonly unknown[] }>;

for (const [title, { kind, needs }] of Object.entries(engines))
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
