import { availableParallelism } from "node:os";

/** What runtimes and tools ask before they count the machine's processors; `nproc` goes by the first as well. */
const names = ["OMP_NUM_THREADS", "GOMAXPROCS", "RAYON_NUM_THREADS", "PYTHON_CPU_COUNT"];

/**
 * Tells programs how many processors a sandbox has the time of: the kernel lets them see all of the machine's, and a
 * sandbox that were bound to some of them could not use others that are idle.
 */
export function processorEnv(vcpus: number, machine = availableParallelism()): Record<string, string> {
  const whole = Math.max(1, Math.ceil(vcpus));
  if (whole >= machine) return {};
  return Object.fromEntries(names.map((name) => [name, String(whole)]));
}
