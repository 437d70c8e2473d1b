export { NativeProvider, type NativeProviderConfig } from "./native-provider.ts";
