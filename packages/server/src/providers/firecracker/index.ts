export type { FirecrackerConfig } from "./firecracker-config.ts";
export { FirecrackerProvider, type FirecrackerProviderOptions } from "./firecracker-provider.ts";
export { removeSharedFiles } from "./machine-disks.ts";
