export * from "./clock.ts";
export * from "./errors.ts";
export * from "./event-sink.ts";
export * from "./ids.ts";
export * from "./image-store.ts";
export * from "./runtime-provider.ts";
export * from "./sandbox-operations.ts";
export * from "./store.ts";
