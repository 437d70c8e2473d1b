export { MockProvider, type MockProviderConfig } from "./mock-provider.ts";
