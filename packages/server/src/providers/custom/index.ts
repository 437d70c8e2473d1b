export type { CustomConfig } from "./custom-config.ts";
export { CustomProvider } from "./custom-provider.ts";
