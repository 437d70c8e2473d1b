import { availableParallelism } from "node:os";
import { defineConfig } from "vitest/config";

/** What uses up the whole machine's memory would be changed by files beside it; bombs, which keep every processor busy in the kernel, would change those. */
const alone = [
  "packages/server/src/providers/native/native-uncounted.test.ts",
  "packages/server/src/providers/native/native-bombs.test.ts",
];

/** Where what they try is named: by `scripts/certify-firecracker`, and as docs/custom-provider.md says. */
const certifies = [
  ...(process.env.ALCOVE_CERTIFY_KERNEL ? [] : ["packages/server/test/certify-firecracker.test.ts"]),
  ...(process.env.ALCOVE_CERTIFY_BACKEND ? [] : ["packages/server/test/certify-custom.test.ts"]),
];

export default defineConfig({
  test: {
    globalSetup: ["packages/server/test/support/global-setup.ts"],
    testTimeout: 20_000,
    hookTimeout: 60_000,
    projects: [
      {
        extends: true,
        test: {
          name: "together",
          include: ["packages/*/src/**/*.test.ts", "packages/*/test/**/*.test.ts"],
          exclude: ["**/node_modules/**", ...alone, ...certifies],
          // Half of the time a file waits for processes, deadlines and disks: see docs/decisions/tests.md.
          maxWorkers: availableParallelism() + 1,
          sequence: { groupOrder: 0 },
        },
      },
      { extends: true, test: { name: "alone", include: alone, maxWorkers: 1, sequence: { groupOrder: 1 } } },
    ],
  },
});
