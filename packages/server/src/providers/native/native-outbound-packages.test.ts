import { existsSync } from "node:fs";
import { afterAll, afterEach, beforeAll, expect, it } from "vitest";
import { type NativeHome, nativeHome, nativeProvider, testImage } from "../../../test/support/native.ts";
import { OutboundSandboxes } from "../../../test/support/outbound-sandboxes.ts";
import { packageSource } from "../../../test/support/package-sources.ts";
import { describeWith } from "../../../test/support/requirements.ts";
import { debianRootfs } from "../../../test/support/tiny-images.ts";
import type { NativeProvider } from "./native-provider.ts";

const sources = {
  apt: await packageSource("apt"),
  pip: await packageSource("pip"),
  npm: await packageSource("npm"),
};
const installMs = 120_000;
/** The machine's own certificates, which image `host` shows. */
const bundle = "/etc/ssl/certs/ca-certificates.crt";
const trust = { SSL_CERT_FILE: bundle, PIP_CERT: bundle, NODE_EXTRA_CA_CERTS: bundle };

/** `it`, skipped aloud where nobody has packages for this client, or the machine's own programs lack it. */
function itInstalls(client: keyof typeof sources, program: string, body: () => Promise<void>): void {
  const source = sources[client];
  const missing =
    "missing" in source
      ? source.missing
      : existsSync(`/usr/bin/${program}`)
        ? undefined
        : `image host has no ${program}`;
  if (missing === undefined) it(`${client} installs from inside a sandbox`, body, 400_000);
  else it.skip(`${client} installs from inside a sandbox (skipped: ${missing})`, () => undefined);
}

await describeWith(
  ["root", "agent", "launcher", "native", "slirp4netns", "debootstrap"],
  "packages from inside",
  () => {
    let home: NativeHome;
    let provider: NativeProvider;
    let sandboxes: OutboundSandboxes;

    beforeAll(async () => {
      home = await nativeHome();
      const debian = await debianRootfs();
      // Mirrors within an organisation have addresses that are closed by default.
      const networkAllow = Object.values(sources).flatMap((source) =>
        "addresses" in source ? source.addresses : [],
      );
      provider = nativeProvider(home.dataDir, debian.dir, { networkMode: "outbound", networkAllow });
      sandboxes = new OutboundSandboxes(() => provider);
    }, 400_000);

    afterEach(() => sandboxes.destroyAll());

    afterAll(async () => {
      await provider[Symbol.asyncDispose]();
      await home.remove();
    });

    const script = (...lines: string[]) => `exec 2>&1; set -e; ${lines.join("; ")}`;
    const patience = { timeoutMs: installMs };

    itInstalls("apt", "apt-get", async () => {
      const { run } = await sandboxes.spawn({ image: testImage, memoryMb: 512 });
      const site = "url" in sources.apt ? sources.apt.url : "";
      const output = await run(
        script(
          `. /etc/os-release`,
          `echo "deb ${site} $VERSION_CODENAME main" > /etc/apt/sources.list`,
          // Commands are root without rights: apt cannot become another user.
          `apt-get -o APT::Sandbox::User=root -q update`,
          `apt-get -o APT::Sandbox::User=root -q install -y --no-install-recommends hello`,
          `hello`,
        ),
        patience,
      );
      expect(output).toMatch(/Hello, world!\s*$/);
    });

    itInstalls("pip", "python3", async () => {
      const { run } = await sandboxes.spawn({ memoryMb: 512, env: trust });
      const output = await run(
        script(
          `cd /workspace`,
          `python3 -m pip install -q --no-cache-dir --root-user-action=ignore --target packages six`,
          `PYTHONPATH=packages python3 -c 'import six; print(six.__file__)'`,
        ),
        patience,
      );
      expect(output).toMatch(/\/workspace\/packages\/six\.py\s*$/);
    });

    itInstalls("npm", "npm", async () => {
      const { run } = await sandboxes.spawn({ memoryMb: 512, env: { ...trust, HOME: "/workspace" } });
      const output = await run(
        script(`cd /workspace`, `npm install --no-audit --no-fund ms`, `node -p 'require("ms")("2 days")'`),
        patience,
      );
      expect(output).toMatch(/172800000\s*$/);
    });
  },
);
