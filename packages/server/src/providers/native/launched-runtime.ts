import type { OnStage } from "../../ports/index.ts";
import type { LaunchReply } from "../launcher/index.ts";
import type { RuntimeRecord } from "./runtime-record.ts";

/** A runtime that was launched, or made ahead and claimed. */
export interface LaunchedRuntime {
  readonly record: RuntimeRecord;
  /** What that consisted of, microseconds each, in its order. */
  readonly stages: LaunchReply["stages"];
}

/** Tells what a launch that has just come to its end consisted of. */
export function tellParts(stages: LaunchedRuntime["stages"], onStage: OnStage): void {
  let leftMs = stages.reduce((sum, [, us]) => sum + us, 0) / 1_000;
  for (const [name, us] of stages) {
    const durationMs = us / 1_000;
    leftMs -= durationMs;
    onStage(`launch ${name}`, durationMs, Math.max(0, leftMs));
  }
}
