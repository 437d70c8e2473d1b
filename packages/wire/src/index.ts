export * from "./duration.ts";
export * from "./errors.ts";
export * from "./events.ts";
export * from "./exec.ts";
export * from "./files.ts";
export * from "./sandboxes.ts";
export * from "./system.ts";
export * from "./texts.ts";
