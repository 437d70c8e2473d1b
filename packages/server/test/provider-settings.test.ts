import { tmpdir } from "node:os";
import { expect, it } from "vitest";
import { configKeys } from "../src/config/keys.ts";
import { silentLogger } from "../src/platform/logger.ts";
import { systemClock } from "../src/platform/system-clock.ts";
import { DockerProvider } from "../src/providers/docker/index.ts";
import { FirecrackerProvider } from "../src/providers/firecracker/index.ts";
import { dockerConfig } from "./support/docker-provider.ts";
import { imagesOf, nativeProvider } from "./support/native.ts";

const elsewhere = ["enabled", "default_image"];
/** Keys that `GET /providers/{name}` does not show by their name, and why. */
const notShown: Readonly<Record<"native" | "docker" | "firecracker", Readonly<Record<string, string>>>> = {
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
};

const outbound = { networkMode: "outbound" } as const;
const providers = {
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
};

it.each(Object.keys(notShown) as (keyof typeof notShown)[])(
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
