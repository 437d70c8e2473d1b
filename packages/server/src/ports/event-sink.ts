import type { NewEvent } from "./store.ts";

/** Something that happened, and whose it is: `ownerId` is empty when it is nobody's. */
export type EmittedEvent = Omit<NewEvent, "timestamp" | "ownerId"> & { ownerId: string };

/** Takes events off the reply path; never throws and never waits. */
export interface EventSink {
  emit(event: EmittedEvent): void;
}
