import { blackBox } from "./black-box/black-box.ts";
import { ExampleBackend } from "./support/custom-backend.ts";
import { firstMissing } from "./support/requirements.ts";

const { skip } = await firstMissing(["linux", "bubblewrap"]);

blackBox("custom", {
  provider: async ({ stack }) => {
    const backend = stack.use(await ExampleBackend.start("backend.mjs"));
    return backend.open();
  },
  ...(skip === undefined ? {} : { skip }),
});
