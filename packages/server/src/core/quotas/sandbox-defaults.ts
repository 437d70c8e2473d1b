import type { Config } from "../../config/config.ts";

/** What a sandbox gets when its request says nothing, and what it may ask for. */
export type SandboxDefaults = Config["defaults"];
