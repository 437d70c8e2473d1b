import { expect, it, vi } from "vitest";
import { attackColumn, attacksAs } from "../../../test/support/attack-table.ts";
import { sharedEngine } from "../../../test/support/docker-engine.ts";
import { openDocker } from "../../../test/support/docker-provider.ts";
import { firstMissing } from "../../../test/support/requirements.ts";
import { randomIds } from "../../platform/random-ids.ts";
import { run, soon } from "../../ports/contract/provider/harness.ts";
import { providerContract } from "../../ports/contract/provider-contract.ts";

/** A sandbox takes half a second to start here, on a machine that does nothing else. */
vi.setConfig({ testTimeout: 60_000 });

const missing = await firstMissing(["docker", "runsc", "agent", "busybox", "compiler"]);
const open = async () => openDocker(await sharedEngine(), { config: { runtime: "runsc" } });

providerContract("docker on gVisor", { ...missing, create: open });

it.skipIf(missing.skip !== undefined)(
  "gVisor: check() says how the agent is reached and why, commands run on its kernel, and what gets through is what the table of attacks says",
  async () => {
    const docker = await open();
    const { healthy, notes } = await docker.provider.check(soon());
    expect(healthy).toBe(true);
    expect(notes.join("\n")).toContain("agent over stdio (sockets do not cross into runsc)");
    const [runtimeId, sandboxId] = [randomIds.runtimeId(), randomIds.sandboxId()];
    const asked = { image: docker.image, memoryMb: 128, vcpus: 1, env: {}, expiresInMs: null, metadata: {} };
    await docker.provider.spawn({ runtimeId, sandboxId, ...asked }, soon(60_000));
    const operations = docker.provider.sandbox(runtimeId);
    expect((await run(operations, "dmesg | head -3")).stdout).toContain("gVisor");
    expect(await attacksAs(operations, ["0", "app"])).toEqual(attackColumn("docker on gVisor"));
    await docker.provider.destroy(runtimeId, soon(30_000));
    await docker.close();
  },
);
