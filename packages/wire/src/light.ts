/** What needs no schema, for programs whose start counts: schemas bring hundreds of modules along. */
export * from "./duration.ts";
export * from "./names.ts";
export * from "./nearest.ts";
