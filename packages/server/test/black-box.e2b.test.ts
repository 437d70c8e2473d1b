import { blackBox } from "./black-box/black-box.ts";
import { hosted } from "./support/e2b/hosted.ts";
import { nativeMissing } from "./support/native-factory.ts";

const skip = await nativeMissing();

blackBox("e2b", {
  provider: async ({ stack }) => {
    const service = await hosted();
    stack.defer(() => service.close());
    return service.open();
  },
  ...(skip === undefined ? {} : { skip }),
});
