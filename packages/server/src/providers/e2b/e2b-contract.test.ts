import { type Hosted, hosted, testTemplate } from "../../../test/support/e2b/hosted.ts";
import { firstMissing } from "../../../test/support/requirements.ts";
import { providerContract } from "../../ports/contract/provider-contract.ts";

let service: Hosted;
providerContract("e2b", {
  ...(await firstMissing(["linux", "root", "agent", "launcher", "native", "busybox"])),
  create: async () => {
    service = await hosted();
    return {
      provider: service.open(),
      image: testTemplate,
      restart: async () => service.open(),
      close: () => service.close(),
    };
  },
});
