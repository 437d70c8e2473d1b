import { afterAll, afterEach, beforeAll, beforeEach, describe } from "vitest";
import { execContract } from "./provider/exec-contract.ts";
import { execControlContract } from "./provider/exec-control-contract.ts";
import { fileContract } from "./provider/file-contract.ts";
import { fileSafetyContract } from "./provider/file-safety-contract.ts";
import { ContractHarness, type ProviderUnderTest } from "./provider/harness.ts";
import { lifecycleContract } from "./provider/lifecycle-contract.ts";
import { spawnContract } from "./provider/spawn-contract.ts";
import type { ContractSubject } from "./provider/subjects.ts";

/** What is not run everywhere: by tests as another user than root, by scripts/certify-firecracker, and for backends of others. */
const notInTable = [
  "proot, unprivileged",
  "proot, unprivileged, image host",
  "firecracker, on this host",
  "custom, a backend of one's own",
] as const;

export type { ProviderUnderTest } from "./provider/harness.ts";

/**
 * The definition of RuntimeProvider: every provider passes it. What a provider does not announce as a capability it
 * does not owe (`provider/owed-for.ts`); `skip` says aloud why nothing can run here. Images need no more than busybox.
 * @param options.brief how runtimes are made and last is tried, and the rest, which is their agents', by `npm run test:contract` alone.
 */
export function providerContract(
  name: ContractSubject | (typeof notInTable)[number],
  options: { create(): Promise<ProviderUnderTest>; skip?: string; brief?: boolean },
): void {
  const title = `provider contract: ${name}`;
  describe.skipIf(options.skip !== undefined)(
    options.skip === undefined ? title : `${title} (skipped: ${options.skip})`,
    () => {
      const harness = new ContractHarness();
      beforeAll(async () => {
        harness.open(await options.create());
      });
      beforeEach((context) => harness.skipUnlessOwed(context));
      afterEach(() => harness.checkNothingLeft());
      afterAll(() => harness.close());

      describe("spawn", () => spawnContract(harness));
      describe("lifecycle", () => lifecycleContract(harness));
      if (options.brief && process.env.CONTRACT_WHOLE === undefined) return;
      describe("exec", () => execContract(harness));
      describe("exec control", () => execControlContract(harness));
      describe("files", () => fileContract(harness));
      describe("file safety", () => fileSafetyContract(harness));
    },
  );
}
