import { FairTurns } from "../../platform/fair-turns.ts";

/** What sandboxes say over streams is read a little in each turn of the loop, over all of them. */
export const serviceTurns = new FairTurns();
