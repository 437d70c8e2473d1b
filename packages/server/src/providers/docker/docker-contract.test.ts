import { sharedEngine } from "../../../test/support/docker-engine.ts";
import { openDocker } from "../../../test/support/docker-provider.ts";
import { firstMissing } from "../../../test/support/requirements.ts";
import { providerContract } from "../../ports/contract/provider-contract.ts";

const missing = await firstMissing(["docker", "agent", "busybox"]);

providerContract("docker on runc", {
  ...missing,
  create: async () => openDocker(await sharedEngine(), { config: { agentTransport: "socket" } }),
});
