export * from "./config.ts";
export * from "./errors.ts";
export { isLoopback, type WayIn, waysIn } from "./exposure.ts";
export { type LintFinding, lintConfig, lintRules } from "./lint.ts";
export {
  type LoadedConfig,
  type LoadOptions,
  loadConfig,
  loadConfigWithSources,
} from "./load.ts";
export { type Isolation, isWeak, type ProviderName, providerIsolation, providerNames } from "./providers.ts";
export { configurationReference } from "./reference.ts";
