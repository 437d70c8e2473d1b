import type { LintRule } from "./lint-rule.ts";
import type { LoadedConfig } from "./load.ts";

/** More addresses than this in one range are no list of proxies, nor of servers that sandboxes need. */
const narrowest = { ipv4: 16, ipv6: 32 };

/** What the service keeps watch over for everybody: who may say where a request comes from, and the guards of the machine. */
export const guardRules: readonly LintRule[] = [
  {
    id: "proxies-anybody",
    level: "fail",
    production: true,
    check: ({ config: { server } }) => {
      const wide = server.trustedProxies.filter(isWide);
      return wide.length > 0
        ? `server.trusted_proxies holds whole networks, whose every host can claim any client address: ${wide.join(", ")}`
        : undefined;
    },
    advice: "name the addresses of your proxies",
  },
  {
    id: "disk-unbounded",
    level: "fail",
    production: true,
    check: ({ config: { providers } }) =>
      isNativePossible(providers) && providers.native.diskMb === 0 && providers.native.minFreeMb === 0
        ? "one sandbox of native can fill the disk: providers.native.disk_mb and min_free_mb are 0"
        : undefined,
    advice: "leave one of them, or both, at its default",
  },
  {
    id: "guards-off",
    level: "warn",
    production: true,
    check: ({ config: { providers, defaults, server } }) => {
      const { native, docker, firecracker } = providers;
      const guards: [key: string, off: boolean][] = [
        ["server.max_connections", server.maxConnections === 0],
        ["defaults.memory_overcommit", defaults.memoryOvercommit === 0 && defaults.maxMemoryMb === 0],
        ["defaults.vcpu_overcommit", defaults.vcpuOvercommit === 0 && defaults.maxVcpus === 0],
        [
          "providers.native.max_uncounted_percent",
          isNativePossible(providers) && native.maxUncountedPercent === 0,
        ],
        ["providers.native.network_mbit", native.networkMode === "outbound" && native.networkMbit === 0],
        [
          "providers.firecracker.network_mbit",
          firecracker.network.length > 0 && firecracker.networkMbit === 0,
        ],
        ["providers.docker.network_mbit", docker.networkMode === "outbound" && docker.networkMbit === 0],
      ];
      const off = guards.filter(([, isOff]) => isOff).map(([key]) => key);
      return off.length > 0 ? `0 takes a guard of the machine away: ${off.join(", ")}` : undefined;
    },
    advice: "leave them at their defaults, or set what the machine can bear",
  },
  {
    id: "network-allow-wide",
    level: "warn",
    production: true,
    check: ({ config: { providers } }) => {
      const wide = [...providers.native.networkAllow, ...providers.docker.networkAllow].filter(isWide);
      return wide.length > 0 ? `sandboxes reach whole private networks: ${wide.join(", ")}` : undefined;
    },
    advice: "name the servers that sandboxes need in network_allow",
  },
  {
    id: "previews-public",
    level: "warn",
    production: true,
    check: ({ config: { preview } }) =>
      preview.access === "public"
        ? "preview.access is public: whoever knows an address opens what listens in a sandbox"
        : undefined,
    advice: "set preview.access: signed, unless all that runs in sandboxes is for everybody",
  },
  {
    id: "sandboxes-end-with-service",
    level: "warn",
    production: true,
    check: ({ config: { server } }) =>
      server.destroyOnExit
        ? "server.destroy_on_exit is true: a restart or an upgrade ends every sandbox"
        : undefined,
    advice: "remove it: sandboxes outlive the service",
  },
];

function isNativePossible({ default: chosen, native }: LoadedConfig["config"]["providers"]): boolean {
  return native.enabled !== false && (chosen === "native" || chosen === "auto" || native.enabled === true);
}

function isWide(range: string): boolean {
  const [address = "", length] = range.split("/");
  if (length === undefined) return false;
  return Number(length) < narrowest[address.includes(":") ? "ipv6" : "ipv4"];
}
