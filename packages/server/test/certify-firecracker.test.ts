import { providerContract } from "../src/ports/contract/provider-contract.ts";
import { firecrackerHome, testImage } from "./support/firecracker/firecracker-home.ts";
import { firstMissing } from "./support/requirements.ts";

/** On real microVMs, where `scripts/certify-firecracker` names what they are made of; vitest.config.ts leaves it out elsewhere. */
const {
  ALCOVE_CERTIFY_FIRECRACKER: firecrackerPath = "",
  ALCOVE_CERTIFY_KERNEL: kernelPath = "",
  ALCOVE_CERTIFY_INITRD: initrdPath = "",
  ALCOVE_CERTIFY_KVM: kvm = "/dev/kvm",
} = process.env;

providerContract("firecracker, on this host", {
  ...(await firstMissing(["linux", "agent", "mkfs", "busybox"])),
  create: async () => {
    const home = await firecrackerHome("none");
    const config = { firecrackerPath, kernelPath, initrdPath };
    const open = () => home.open({ config, kvm, guests: "machines" });
    return {
      provider: open(),
      image: testImage,
      restart: async () => open(),
      close: () => home.remove(),
    };
  },
});
