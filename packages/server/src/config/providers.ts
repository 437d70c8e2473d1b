/**
 * What stands between a sandbox and its host: `enforced` by kernel or engine, `none` worth the name, a `simulated` sandbox
 * that runs no program at all, or another's machine, where it is `hosted`.
 */
export type Isolation = "enforced" | "none" | "simulated" | "hosted";

/** The providers this service has, in the order `auto` prefers them. */
export const providerIsolation = {
  firecracker: "enforced",
  native: "enforced",
  docker: "enforced",
  e2b: "hosted",
  custom: "hosted",
  proot: "none",
  mock: "simulated",
} as const satisfies Record<string, Isolation>;

export type ProviderName = keyof typeof providerIsolation;

export const providerNames = Object.keys(providerIsolation) as ProviderName[];

/** Whether clients may be let loose on it without the operator asking for it by name. */
export const isWeak = (name: ProviderName): boolean =>
  providerIsolation[name] !== "enforced" && providerIsolation[name] !== "hosted";

/** Runtimes of a Docker Engine, by the name of their program, whose containers share this machine's kernel. */
export const kernelSharingRuntimes: ReadonlySet<string> = new Set([
  "runc",
  "crun",
  "youki",
  "docker-runc",
  "io.containerd.runc.v2",
  "nvidia-container-runtime",
]);

/** Whether a `network_mode` of docker names a network of the engine's own, which closes no address to sandboxes. */
export const isEngineNetwork = (mode: string): boolean => !["none", "outbound", "host"].includes(mode);
