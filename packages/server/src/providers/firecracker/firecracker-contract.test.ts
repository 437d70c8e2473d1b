import { firecrackerHome, testImage } from "../../../test/support/firecracker/firecracker-home.ts";
import { firstMissing } from "../../../test/support/requirements.ts";
import { providerContract } from "../../ports/contract/provider-contract.ts";

const missing = await firstMissing(["linux", "root", "agent", "mkfs", "native", "busybox"]);

/** Behind a fake of Firecracker, with guests that are the agent alone, in namespaces and the root that the drive holds. */
for (const [title, jailed, snapshots] of [
  ["process guests", false, false],
  ["process guests in jails, restored from snapshots", true, true],
] as const)
  providerContract(`firecracker, ${title}`, {
    ...missing,
    create: async () => {
      const home = await firecrackerHome("process", { jailed });
      const open = () => home.open({ config: { snapshots } });
      return { provider: open(), image: testImage, restart: async () => open(), close: () => home.remove() };
    },
  });
