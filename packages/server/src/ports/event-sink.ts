import type { NewEvent } from "./store.ts";

/** Takes events off the reply path; never throws and never waits. */
export interface EventSink {
  emit(event: Omit<NewEvent, "timestamp">): void;
}
