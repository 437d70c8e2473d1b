export { BoundedStream } from "./bounded-stream.ts";
export type { ExecInput } from "./exec-input.ts";
export { FollowTries } from "./follow-tries.ts";
export type { Journal } from "./journal.ts";
export { JournaledExecs } from "./journaled-execs.ts";
export type { ExecRunner, ProgramEnd, ProgramStreams, RunningProgram } from "./runner.ts";
