export { type ProotConfig, ProotProvider } from "./proot-provider.ts";
