import type { RuntimeId } from "../../ports/index.ts";
import type { OpenFiles } from "./open-files.ts";
import { unixSocketsIn } from "./socket-holdings.ts";
import { UnmetSockets } from "./unmet-sockets.ts";
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
  sockets: UnmetSockets;
}

/**
 * Files that are open without a descriptor: those that a call has while it waits, and those that are in the queue of a socket
 * which itself only a call has. Programs have such calls and sockets as well, but for moments: what counts is what stays from look to look.
 */
export class OutOfSight {
  readonly #before = new Map<RuntimeId, Before>();

  /** Leaves those of whom there is a next look. */
  forgetOthers(present: ReadonlySet<RuntimeId>): void {
    for (const runtimeId of this.#before.keys()) if (!present.has(runtimeId)) this.#before.delete(runtimeId);
  }

  /**
   * @param look.open of all its processes, seen just now.
   * @param look.grownBytes the most that anybody can have.
   * @returns the most that its files without a descriptor can hold, bytes.
   */
  async heldBy(
    { runtimeId, pid }: { runtimeId: RuntimeId; pid: number },
    { pids, open, grownBytes }: { pids: readonly number[]; open: OpenFiles; grownBytes: number },
  ): Promise<number> {
    const before = this.#before.get(runtimeId);
    const calls = await waitingCallsOf(pids);
    const still = [...calls].filter(([line]) => before?.calls.has(line)).map(([, call]) => call);
    const locks = still.filter((call) => call === "lock").length;
    const sends = [...calls.values()].includes("send") ? (before?.sends ?? 0) + 1 : 0;
    const sockets = before?.sockets ?? new UnmetSockets();
    sockets.look(open, await unixSocketsIn(pid));
    this.#before.set(runtimeId, { calls: new Set(calls.keys()), sends, sockets });
    const hides = still.length > locks || sends >= looksOfSends || sockets.areNowhere;
    return hides ? grownBytes : Math.min(grownBytes, locks * heldOutOfSight);
  }
}
