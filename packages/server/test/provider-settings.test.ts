import { tmpdir } from "node:os";
import { expect, it } from "vitest";
import { configKeys } from "../src/config/keys.ts";
import { type ProviderName, providerNames } from "../src/config/providers.ts";
import { silentLogger } from "../src/platform/logger.ts";
import { systemClock } from "../src/platform/system-clock.ts";
import type { RuntimeProvider } from "../src/ports/index.ts";
import { CustomProvider } from "../src/providers/custom/index.ts";
import { DockerProvider } from "../src/providers/docker/index.ts";
import { E2bProvider } from "../src/providers/e2b/index.ts";
import { FirecrackerProvider } from "../src/providers/firecracker/index.ts";
import { MockProvider } from "../src/providers/mock/index.ts";
import { ProotProvider } from "../src/providers/proot/index.ts";
import { dockerConfig } from "./support/docker-provider.ts";
import { imagesOf, nativeProvider } from "./support/native.ts";

const elsewhere = ["enabled", "default_image"];
/** Keys that `GET /providers/{name}` does not show by their name, and why. */
const notShown: Readonly<Record<ProviderName, Readonly<Record<string, string>>>> = {
  native: { uid_base: "of the host alone" },
  docker: {
    socket: "as `engine`: its kind, for an address may hold a name",
    tls_dir: "as `engine`: tls where it is used",
    seccomp_profile: "as `seccomp`: not where its file lies",
    user: "of each sandbox's image",
    tmpfs: "of each sandbox",
  },
  firecracker: {
    firecracker_path: "of the host alone",
    jailer_path: "as `jailed`: whether there is one",
    jail_uid_base: "of the host alone",
    kernel_path: "of the host alone",
    initrd_path: "as `initrd`: whether there is one",
    data_dir: "of the host alone",
    network: "as `networks`: how many",
  },
  e2b: {
    api_key: "a secret",
    api_key_file: "of the host alone",
    api_url: "of the operator alone: `domain` tells whose service it is",
    sandbox_url: "as api_url",
    timeout: "of calls of the service's own",
    max_lifetime: "as `max_lifetime_s`",
  },
  custom: {
    url: "of the operator alone",
    api_key: "a secret",
    api_key_file: "of the host alone",
    auth_header: "of the operator alone",
    timeout: "of calls of the service's own",
  },
  proot: { proot_binary: "of the host alone" },
  mock: {},
};

const outbound = { networkMode: "outbound" } as const;
const hosted = {
  instanceId: "settings",
  noteKey: Buffer.alloc(32),
  clock: systemClock,
  logger: silentLogger,
};
const calls = { defaultImage: "", apiKey: "", networkMode: "none", timeoutMs: 1 } as const;
const providers: Record<ProviderName, () => RuntimeProvider> = {
  firecracker: () =>
    new FirecrackerProvider({
      config: {
        defaultImage: "",
        firecrackerPath: "",
        jailerPath: "",
        jailUidBase: 1,
        kernelPath: "",
        initrdPath: "",
        dataDir: "",
        network: ["tap0 172.16.0.2/30 172.16.0.1"],
        networkMbit: 0,
        diskRateMb: 0,
        snapshots: false,
        diskMb: 16,
        minFreeMb: 0,
        pidsLimit: 16,
      },
      dataDir: tmpdir(),
      instanceId: "settings",
      agentBinary: "/nowhere",
      images: imagesOf("none", "/nowhere"),
      logger: silentLogger,
    }),
  native: () => nativeProvider(tmpdir(), tmpdir(), outbound),
  docker: () =>
    new DockerProvider({
      config: dockerConfig({ socket: "unix:///nowhere" }, outbound),
      dataDir: tmpdir(),
      instanceId: "settings",
      pullPolicy: "never",
      allowedRegistries: [],
      agentBinary: "/nowhere",
      launcherBinary: "/nowhere",
      logger: silentLogger,
      clock: systemClock,
    }),
  e2b: () =>
    new E2bProvider({
      ...hosted,
      config: { ...calls, domain: "", apiUrl: "", sandboxUrl: "", maxLifetimeMs: 1 },
    }),
  custom: () => new CustomProvider({ ...hosted, config: { ...calls, url: "", authHeader: "bearer" } }),
  proot: () =>
    new ProotProvider({
      config: { defaultImage: "", prootBinary: "" },
      dataDir: tmpdir(),
      instanceId: "settings",
      agentBinary: "/nowhere",
      images: imagesOf("none", "/nowhere"),
      logger: silentLogger,
    }),
  mock: () =>
    new MockProvider({
      config: { defaultImage: "", maxWorkers: 1 },
      logger: silentLogger,
      clock: systemClock,
    }),
};

it.each(providerNames)(
  "each key of %s is among its settings, or on the list of those that are not",
  async (name) => {
    await using provider = providers[name]();
    const shown = Object.keys(provider.settings());
    const keys = configKeys
      .filter(({ key }) => key.startsWith(`providers.${name}.`))
      .map(({ key }) => key.slice(`providers.${name}.`.length));
    expect(keys.filter((key) => !elsewhere.includes(key) && !shown.includes(key)).sort()).toEqual(
      Object.keys(notShown[name]).sort(),
    );
  },
);
