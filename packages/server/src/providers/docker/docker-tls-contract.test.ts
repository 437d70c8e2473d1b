import { cp, mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { describe, expect, it } from "vitest";
import { makeCertificates } from "../../../test/support/certificates.ts";
import { startEngine } from "../../../test/support/docker-engine.ts";
import { openDocker } from "../../../test/support/docker-provider.ts";
import { firstMissing } from "../../../test/support/requirements.ts";
import { soon } from "../../ports/contract/provider/harness.ts";
import { providerContract } from "../../ports/contract/provider-contract.ts";

const missing = await firstMissing(["docker", "openssl", "agent", "busybox"]);

/** As an engine on another machine: over TCP with TLS, without a file in common, the agent over exec's standard streams. */
providerContract("docker over TCP with TLS", {
  ...missing,
  create: async () => {
    const engine = await startEngine({ tls: true });
    const { address, clientDir } = engine.tls ?? { address: "", clientDir: "" };
    const docker = await openDocker(engine, { config: { socket: address, tlsDir: clientDir } });
    return {
      ...docker,
      close: async () => {
        await docker.close();
        await engine[Symbol.asyncDispose]();
      },
    };
  },
});

describe.skipIf(missing.skip !== undefined)("an engine behind TLS", () => {
  it("is reached by who has its certificates alone, and the failure says what is wrong", async () => {
    await using engine = await startEngine({ tls: true });
    const { address, clientDir } = engine.tls ?? { address: "", clientDir: "" };
    const folder = await mkdtemp(join(tmpdir(), "alcove-tls-"));
    const stranger = await makeCertificates(folder);
    const check = async (config: { socket?: string; tlsDir: string }) => {
      const docker = await openDocker(engine, { config: { socket: address, ...config } });
      const found = await docker.provider.check(soon());
      const settings = docker.provider.settings();
      await docker.close();
      return { ...found, engine: settings.engine };
    };
    try {
      // The certificates of tests are good for two days.
      const notes = expect.arrayContaining([expect.stringMatching(/^the certificate in .* ends at 20/)]);
      expect(await check({ tlsDir: clientDir })).toMatchObject({ healthy: true, engine: "tls", notes });
      const byName = address.replace("127.0.0.1", "localhost");
      expect(await check({ tlsDir: clientDir, socket: byName })).toMatchObject({ healthy: true });
      expect((await check({ tlsDir: stranger.client })).error).toContain("vouches for");
      expect((await check({ tlsDir: "" })).error).toContain("providers.docker.tls_dir");
      expect((await check({ tlsDir: "/nowhere" })).error).toContain("ca.pem, cert.pem and key.pem");
    } finally {
      await rm(folder, { recursive: true });
    }
  });

  it("is reached again once files that were wrong have been replaced", async () => {
    await using engine = await startEngine({ tls: true });
    const { address, clientDir } = engine.tls ?? { address: "", clientDir: "" };
    const folder = await mkdtemp(join(tmpdir(), "alcove-tls-"));
    for (const name of ["ca.pem", "cert.pem", "key.pem"]) await writeFile(join(folder, name), "");
    const docker = await openDocker(engine, { config: { socket: address, tlsDir: folder } });
    try {
      expect((await docker.provider.check(soon())).healthy).toBe(false);
      await cp(clientDir, folder, { recursive: true, force: true });
      expect((await docker.provider.check(soon())).healthy).toBe(true);
    } finally {
      await docker.close();
      await rm(folder, { recursive: true });
    }
  });
});
