import type { LoadedConfig } from "./load.ts";

/** One rule of `alcove config lint`. */
export interface LintRule {
  id: string;
  /** `fail` ends the command with 1. */
  level: "fail" | "warn";
  /** Applies with `--production` only. */
  production: boolean;
  /** @returns what was found, or undefined when all is well. */
  check(loaded: LoadedConfig): string | undefined;
  advice: string;
}
