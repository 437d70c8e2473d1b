import type { RuntimeId } from "../../ports/index.ts";
import { waitingCallsOf } from "./waiting-calls.ts";

/** Of a file that is not to be seen: a list of 120,000 names. */
export const heldOutOfSight = 64 << 20;
/** Looks in a row at which somebody waited to send, in whatever call: files go from one to the next in no time. */
const looksOfSends = 5;

/** Of one sandbox, as the looks before have seen it. */
interface Before {
  /** As `waitingCallsOf` names them. */
  calls: ReadonlySet<string>;
  /** Looks in a row. */
  sends: number;
}

/**
 * Files that are open without a descriptor: those that a call has while it waits. Programs wait like that without having anything, but
 * for moments: what counts is what stays from look to look.
 */
export class OutOfSight {
  readonly #before = new Map<RuntimeId, Before>();

  /** Leaves those of whom there is a next look. */
  forgetOthers(present: ReadonlySet<RuntimeId>): void {
    for (const runtimeId of this.#before.keys()) if (!present.has(runtimeId)) this.#before.delete(runtimeId);
  }

  /**
   * @param look.grownBytes the most that anybody can have.
   * @returns the most that its files without a descriptor can hold, bytes.
   */
  async heldBy(
    runtimeId: RuntimeId,
    { pids, grownBytes }: { pids: readonly number[]; grownBytes: number },
  ): Promise<number> {
    const before = this.#before.get(runtimeId);
    const calls = await waitingCallsOf(pids);
    const still = [...calls].filter(([line]) => before?.calls.has(line)).map(([, call]) => call);
    const locks = still.filter((call) => call === "lock").length;
    const sends = [...calls.values()].includes("send") ? (before?.sends ?? 0) + 1 : 0;
    this.#before.set(runtimeId, { calls: new Set(calls.keys()), sends });
    const hides = still.length > locks || sends >= looksOfSends;
    return hides ? grownBytes : Math.min(grownBytes, locks * heldOutOfSight);
  }
}
