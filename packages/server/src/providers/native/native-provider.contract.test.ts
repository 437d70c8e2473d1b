import { type NativeHome, nativeHome, testImage } from "../../../test/support/native.ts";
import { requirement } from "../../../test/support/requirements.ts";
import { providerContract } from "../../ports/contract/provider-contract.ts";

const missing = [];
for (const name of ["linux", "root", "agent", "launcher", "native", "busybox"] as const) {
  const found = await requirement(name);
  if (!found.ok) missing.push(found.reason);
}

let home: NativeHome;
providerContract("native, rooted", {
  ...(missing.length === 0 ? {} : { skip: missing.join("; ") }),
  create: async () => {
    home = await nativeHome();
    return {
      provider: home.open(),
      image: testImage,
      restart: async () => home.open(),
      close: () => home.remove(),
    };
  },
});
