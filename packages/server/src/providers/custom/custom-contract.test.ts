import { ExampleBackend } from "../../../test/support/custom-backend.ts";
import { firstMissing } from "../../../test/support/requirements.ts";
import { providerContract } from "../../ports/contract/provider-contract.ts";

const needed = await firstMissing(["linux", "bubblewrap"]);

for (const [title, file] of [
  ["reference", "backend.mjs"],
  ["minimal", "minimal.mjs"],
] as const)
  providerContract(`custom, ${title} backend`, {
    ...needed,
    create: async () => {
      const backend = await ExampleBackend.start(file);
      return {
        provider: await backend.open(),
        image: "host",
        restart: () => backend.open(),
        close: () => backend[Symbol.asyncDispose](),
      };
    },
  });
