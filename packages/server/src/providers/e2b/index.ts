export type { E2bConfig } from "./e2b-config.ts";
export { E2bProvider } from "./e2b-provider.ts";
