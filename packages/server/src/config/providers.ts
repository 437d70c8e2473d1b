/**
 * What stands between a sandbox and its host: `enforced` by kernel or engine, `none` worth the name, or a
 * `simulated` sandbox that runs no program at all.
 */
export type Isolation = "enforced" | "none" | "simulated";

/** The providers this service has, in the order `auto` prefers them. */
export const providerIsolation = {
  native: "enforced",
  docker: "enforced",
  proot: "none",
  mock: "simulated",
} as const satisfies Record<string, Isolation>;

export type ProviderName = keyof typeof providerIsolation;

export const providerNames = Object.keys(providerIsolation) as ProviderName[];

/** Whether clients may be let loose on it without the operator asking for it by name. */
export const isWeak = (name: ProviderName): boolean => providerIsolation[name] !== "enforced";

/** Runtimes of a Docker Engine, by the name of their program, whose containers share this machine's kernel. */
export const kernelSharingRuntimes: ReadonlySet<string> = new Set([
  "runc",
  "crun",
  "youki",
  "docker-runc",
  "io.containerd.runc.v2",
  "nvidia-container-runtime",
]);
