import { FairTurns } from "../../platform/fair-turns.ts";

/** What backends say is read for some milliseconds a turn of the loop, over all their answers and the streams of commands. */
export const backendTurns = new FairTurns();
