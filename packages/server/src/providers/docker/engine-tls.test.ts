import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { expect, it } from "vitest";
import { makeCertificates } from "../../../test/support/certificates.ts";
import { firstMissing } from "../../../test/support/requirements.ts";
import { EngineTls } from "./engine-tls.ts";

const { skip } = await firstMissing(["openssl"]);
const dayMs = 86_400_000;

it.skipIf(skip !== undefined)(
  "the end of a certificate is told two weeks before, and when it has come",
  async () => {
    const folder = await mkdtemp(join(tmpdir(), "alcove-tls-"));
    try {
      // Good for two days.
      const { client } = await makeCertificates(folder);
      const inDays = (days: number) =>
        new EngineTls({ dir: client, host: "localhost" }).ending(new Date(Date.now() + days * dayMs));
      expect(await inDays(-13)).toBeUndefined();
      expect(await inDays(-11)).toMatch(/ ends at 20\S+: renew it/);
      expect(await inDays(3)).toMatch(/ ended at 20/);
      expect(await new EngineTls({ dir: "/nowhere", host: "localhost" }).ending(new Date())).toBeUndefined();
    } finally {
      await rm(folder, { recursive: true });
    }
  },
);
