import { availableParallelism, totalmem } from "node:os";

/** @returns what this process can use of the machine, within the limits it was started under. */
export function thisMachine(): { memoryMb: number; vcpus: number } {
  const constrained = process.constrainedMemory();
  // Without a limit it is zero, or a number beyond any machine.
  const bytes = constrained > 0 ? Math.min(constrained, totalmem()) : totalmem();
  return { memoryMb: Math.floor(bytes / 1_048_576), vcpus: availableParallelism() };
}
