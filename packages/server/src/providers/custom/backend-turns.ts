import { FairTurns } from "../../platform/fair-turns.ts";
import { ReadTurns } from "../../platform/read-turns.ts";

/** What backends say is read a little in each turn of the loop, over all their answers and the streams of commands. */
export const backendTurns = new FairTurns();

/** And what its HTTP is made of, of which there may be eleven thousand chunks in what is read at once. */
export const backendReads = new ReadTurns();
