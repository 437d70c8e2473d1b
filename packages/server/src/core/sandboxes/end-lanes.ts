import { ShuttingDown } from "../../platform/deadline.ts";
import { FairLanes, type Lane } from "../../platform/fair-lanes.ts";
import type { SandboxRow } from "../../ports/index.ts";

/** Runtimes of one provider that the service ends at once of its own accord; the others wait in line. */
const parallelEnds = 16;

/** Whose runtime it is, and who ends it. */
export type EndAddress = Pick<SandboxRow, "workerId" | "provider" | "ownerId">;

/** Whose turn it is to have its runtime ended: what has expired, every destroy that is repeated, and what belongs to no sandbox. Owners by turns. */
export class EndLanes {
  /** By worker and provider: one that answers nothing does not keep those of others waiting. */
  readonly #lanes = new Map<string, FairLanes>();
  #closed = false;

  /** Whether one more would have to wait. */
  full(of: EndAddress): boolean {
    return this.#of(of).full;
  }

  /** @throws ShuttingDown once it is closed, those who wait included. */
  async enter(of: EndAddress): Promise<Lane> {
    if (this.#closed) throw new ShuttingDown();
    const lane = await this.#of(of).enter(of.ownerId);
    // A destroy that waits for nothing would go on in the same turn of the event loop, with all that follow.
    return { leave: () => void setImmediate(() => lane.leave()) };
  }

  close(): void {
    this.#closed = true;
    for (const lanes of this.#lanes.values()) lanes.refuse(new ShuttingDown());
  }

  #of({ workerId, provider }: EndAddress): FairLanes {
    const address = `${workerId} ${provider}`;
    const lanes = this.#lanes.get(address) ?? new FairLanes(parallelEnds);
    this.#lanes.set(address, lanes);
    return lanes;
  }
}
