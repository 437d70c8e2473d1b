export type { NativeProviderConfig } from "./launch-plan.ts";
export { NativeProvider } from "./native-provider.ts";
export { endGroupsOf } from "./orphaned-groups.ts";
