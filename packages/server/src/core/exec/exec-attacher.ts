import { DomainError, RuntimeGone } from "../../ports/errors.ts";
import type { ExecId } from "../../ports/ids.ts";
import type { CallOptions, ExecInfo } from "../../ports/sandbox-operations.ts";
import type { ExecFollow, ExecFollower } from "./exec-follower.ts";
import type { ExecTarget } from "./exec-target.ts";
import type { ExecReader, ExecTracker } from "./exec-tracker.ts";

/** How the output of a command that was started before is wanted. */
export type AttachOptions = CallOptions & {
  from: number;
  follow: boolean;
  lossless?: boolean;
  /** Name of the input of this follower; it goes on where an earlier one of that name broke off. */
  input?: string;
};

/** Follows commands that somebody else started, or that were followed before. */
export class ExecAttacher {
  readonly #tracker: ExecTracker;
  readonly #follower: ExecFollower;

  constructor(options: { tracker: ExecTracker; follower: ExecFollower }) {
    this.#tracker = options.tracker;
    this.#follower = options.follower;
  }

  /** Answers from `from` on what is kept, and with `follow` what comes until the end. */
  async attach(
    target: ExecTarget,
    id: ExecId,
    options: AttachOptions,
  ): Promise<ExecFollow & { info: ExecInfo }> {
    const { from, follow, signal, input } = options;
    const lossless = (follow && options.lossless === true) || (await this.#isAttached(target, id, options));
    const named = input === undefined ? {} : { input };
    const attach = () =>
      this.#withInput(target, id, options, () =>
        target.operations.execs.attach(id, { from, follow, lossless, signal, ...named }),
      );
    if (!follow) {
      const view = await attach();
      const reader: ExecReader = { leave: () => undefined };
      const until = view.info.outputBytes;
      return Object.assign(this.#follower.follow(target, { view, reader, signal, from, lossless, until }), {
        info: view.info,
      });
    }
    const { attached, reader } = await this.#tracker.attach(target, id, attach);
    const { startedAt } = attached.info;
    const reading = { view: attached, reader, signal, from, lossless, input, startedAt };
    return Object.assign(this.#follower.followToEnd(target, reading), { info: attached.info });
  }

  /** An earlier follower of that name has the input no longer, unless it is clear that the sandbox did not take this one. */
  async #withInput<T>(
    target: ExecTarget,
    id: ExecId,
    { input, signal }: AttachOptions,
    attach: () => Promise<T>,
  ): Promise<T> {
    if (input === undefined) return attach();
    const claim = this.#follower.claimInput(target.row.id, id, input);
    try {
      const attached = await attach();
      claim.taken();
      return attached;
    } catch (error) {
      const refused = error instanceof DomainError && !(error instanceof RuntimeGone) && !signal.aborted;
      if (refused) claim.refused();
      else claim.taken();
      throw error;
    }
  }

  /**
   * Whether this command runs and was not started detached. After a restart a reader may be back before the tracker
   * knows the command: its output would wait for ever for a reader that takes over as the first one did.
   */
  async #isAttached(target: ExecTarget, id: ExecId, options: CallOptions): Promise<boolean> {
    const detached = this.#tracker.isDetached(target.row.id, id);
    if (detached !== undefined) return !detached;
    const info = await target.operations.execs.get(id, options);
    return info.exit === undefined && !info.detached;
  }
}
