export type { NativeProviderConfig } from "./launch-plan.ts";
export { NativeProvider } from "./native-provider.ts";
export { endGroupsOf, endGroupsWhere } from "./orphaned-groups.ts";
