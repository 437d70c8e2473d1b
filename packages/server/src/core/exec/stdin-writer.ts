import { TurnsByName } from "../../platform/turns-by-name.ts";
import { Conflict, Unavailable } from "../../ports/errors.ts";
import type { ExecId, Ids } from "../../ports/ids.ts";
import type { CallOptions, ExecOperations } from "../../ports/sandbox-operations.ts";
import type { ExecFollower } from "./exec-follower.ts";
import type { ExecTarget } from "./exec-target.ts";
import type { OverBreaks } from "./over-breaks.ts";

export type StdinOptions = CallOptions & {
  close: boolean;
  /** Name of the input this is of, and the offset of its first byte there: what was taken of it before is not taken again. */
  input?: string;
  offset?: number;
};

/** Writes to the standard input of commands, each byte once, whatever breaks. */
export class StdinWriter {
  readonly #ids: Pick<Ids, "execId">;
  readonly #follower: Pick<ExecFollower, "leaveInput">;
  readonly #overBreaks: OverBreaks;
  /** What is written without a name goes in order, each behind what was asked for before. */
  readonly #turns = new TurnsByName();
  /** Calls under way that go on with a named input. */
  readonly #named = new Map<object, string>();

  constructor(options: {
    ids: Pick<Ids, "execId">;
    follower: Pick<ExecFollower, "leaveInput">;
    overBreaks: OverBreaks;
  }) {
    this.#ids = options.ids;
    this.#follower = options.follower;
    this.#overBreaks = options.overBreaks;
  }

  /** @returns how much of the input was taken by now, when it has a name. @throws Conflict, with `taken`, for a gap in it. */
  async write(
    target: ExecTarget,
    execId: ExecId,
    data: Uint8Array,
    options: StdinOptions,
  ): Promise<{ taken?: number }> {
    const { input } = options;
    if (input !== undefined) {
      const call = {};
      this.#named.set(call, namedKey(target.row.id, execId, input));
      const writing = this.#writeFrom(target, execId, data, {
        ...options,
        input,
        onSend: () => this.#follower.leaveInput(target.row.id, execId, input),
      });
      const taken = await writing.finally(() => this.#named.delete(call));
      if (taken === undefined)
        throw new Unavailable(
          `how much of input ${input} was taken is not known: the sandbox is older than the service, or too many names were used`,
        );
      return { taken };
    }
    const writeAll = async () => {
      // All of it has one name, under which it goes on: names are remembered in a limited number.
      const shared = { ...options, input: `post-${execId}`, offset: "end" as const };
      if ((await this.#writeFrom(target, execId, data, shared)) !== undefined) return;
      const single = this.#ids.execId();
      await this.#overBreaks.perform(target, options, (execs, again) =>
        execs.writeStdin(execId, data, { ...options, input: single, again }),
      );
    };
    await this.#turns.run(`${target.row.id} ${execId}`, writeAll, options);
    return {};
  }

  /** Whether a call goes on with this input now. */
  holds(sandboxId: string, execId: ExecId, input: string): boolean {
    const key = namedKey(sandboxId, execId, input);
    for (const held of this.#named.values()) if (held === key) return true;
    return false;
  }

  /** Sends what is missing of it, and after a break what is missing then. @returns undefined when nobody knows what is. */
  #writeFrom(
    target: ExecTarget,
    execId: ExecId,
    data: Uint8Array,
    options: Omit<StdinOptions, "offset"> & {
      input: string;
      offset?: number | "end";
      /** It is not refused for a gap, and is sent: whoever had this input before has not from now on. */
      onSend?: () => void;
    },
  ): Promise<number | undefined> {
    const { input } = options;
    let from = options.offset === "end" ? undefined : (options.offset ?? 0);
    return this.#overBreaks.perform(target, options, async (execs: ExecOperations, again) => {
      const taken = await execs.inputTaken(execId, input, options);
      if (taken === undefined) return undefined;
      from ??= taken;
      if (from > taken)
        throw new Conflict(`input ${input} goes on at byte ${taken}, not at ${from}`, { details: { taken } });
      const known = Math.min(taken - from, data.length);
      const { close, signal } = options;
      const sent = { close, signal, input, offset: from + known, again: again || known > 0 };
      const left = data.subarray(known);
      options.onSend?.();
      try {
        await execs.writeStdin(execId, left, sent);
      } catch (error) {
        // A call that is repeated finds closed what it closed before, or its command ended: all was taken, nothing is left to do.
        if (left.length > 0 || options.offset === "end" || !(error instanceof Conflict)) throw error;
      }
      return Math.max(taken, from + data.length);
    });
  }
}

function namedKey(sandboxId: string, execId: ExecId, input: string): string {
  return `${sandboxId} ${execId} ${input}`;
}
