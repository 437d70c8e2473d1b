import type { Logger } from "../../platform/logger.ts";
import type { RuntimeId } from "../../ports/index.ts";
import type { IdsSpec, Launcher } from "../launcher/index.ts";
import { adviceFor } from "./advice.ts";
import { idsPerSandbox } from "./id-ranges.ts";
import type { LaunchGround } from "./launch-ground.ts";
import { isOurs, type RuntimeDirectories } from "./runtime-directories.ts";
import type { RuntimeRecord } from "./runtime-record.ts";

/** A deletion that takes longer is looked after: its process may have been killed. Then ever more rarely. */
const trashMs = 30_000;
const longestTrashMs = 3_600_000;

/** Takes away runtimes and all that is left of them, and keeps in mind what could not be yet. */
export class Removals {
  readonly #directories: RuntimeDirectories;
  readonly #launcher: Launcher;
  readonly #uidBase: number;
  readonly #isOwn: (record: RuntimeRecord) => boolean;
  readonly #busy: () => Disposable;
  readonly #logger: Logger;
  /** Probes and deleted directories that are not gone yet, by what they are: each is what takes it away. */
  readonly #left = new Map<string, () => Promise<void>>();
  /** Deleted directories that the last look found: when they are deleted once more. */
  #inTrash: ReadonlyMap<string, { dueMs: number; pauseMs: number }> = new Map();
  #clearing: Promise<void> | undefined;
  #hasGivenUp = false;

  constructor(options: {
    directories: RuntimeDirectories;
    launcher: Launcher;
    /** First of the ids of all sandboxes: what has no record may belong to any of them. */
    uidBase: number;
    /** Whether it is a runtime of this installation: no other is touched. */
    isOwn: (record: RuntimeRecord) => boolean;
    /** Held while a runtime is removed. */
    busy: () => Disposable;
    logger: Logger;
  }) {
    this.#directories = options.directories;
    this.#launcher = options.launcher;
    this.#uidBase = options.uidBase;
    this.#isOwn = options.isOwn;
    this.#busy = options.busy;
    this.#logger = options.logger;
  }

  /** Kills, and removes every trace. Idempotent. The runtime's id range is free afterwards. */
  async remove(ground: LaunchGround, runtimeId: RuntimeId, options: { once?: boolean } = {}): Promise<void> {
    using _ = this.#busy();
    await this.removeDir(ground, this.#directories.path(runtimeId), { runtimeId, ...options });
    await ground.ranges.release(runtimeId);
  }

  /** Removes what has said all it can say; tried again with each `clear` where that fails. Does not fail. */
  async discard(ground: LaunchGround, runtimeId: RuntimeId): Promise<void> {
    await this.removeOrLeave(runtimeId, () => this.remove(ground, runtimeId, { once: true }));
  }

  /** The same of anything. @param what it is, for the log. */
  async removeOrLeave(what: string, remove: () => Promise<void>): Promise<void> {
    try {
      await remove();
    } catch (error) {
      if (!this.#hasGivenUp) this.#left.set(what, remove);
      this.#logger.warn(
        { err: error },
        `${what} is not gone yet, and is removed later: ${await adviceFor(error)}`,
      );
    }
  }

  /** Kills what runs in a directory, and removes that; the range of its ids stays taken. */
  async removeDir(
    ground: LaunchGround,
    dir: string,
    { runtimeId, once = false }: { runtimeId?: RuntimeId; once?: boolean },
  ): Promise<void> {
    const record = runtimeId === undefined ? undefined : await this.#directories.recordIfWhole(runtimeId);
    if (record !== undefined && !this.#isOwn(record)) return;
    const expected = runtimeId === undefined ? undefined : ground.cgroups?.spec(runtimeId);
    const anybody: IdsSpec = ground.rooted
      ? { kind: "range", base: this.#uidBase, count: idsPerSandbox }
      : ground.unprivilegedIds;
    const spec = {
      dir,
      trash: this.#directories.trash,
      cgroup: record?.cgroup ?? expected ?? null,
      ids: record?.ids ?? anybody,
    };
    await this.#launcher.destroy(spec, { once });
    if (record?.sandbox?.slot !== undefined) ground.cgroups?.slots.tidy(record.sandbox.slot);
  }

  /** What a service before this one was deleting, probing or preparing when it ended. */
  async sweep(ground: LaunchGround): Promise<void> {
    const left = (await this.#directories.list()).filter(isOurs);
    for (const runtimeId of left) await this.discard(ground, runtimeId);
    for (const path of await this.#directories.listTrash())
      await this.removeOrLeave(path, () => this.removeDir(ground, path, { once: true }));
  }

  /**
   * What a launcher was deleting when it died. Looked at before the next one moves anything there.
   * @param ground undefined while nothing was found out, and so nothing deleted.
   */
  sweepTrash(ground: Promise<LaunchGround> | undefined): void {
    const left = this.#directories.listTrashNow();
    void ground
      ?.then(async (found) => {
        for (const path of left) await this.removeDir(found, path, { once: true });
      })
      .catch((err: unknown) => this.#logger.warn({ err }, "what a launcher left cannot be deleted yet"));
  }

  /** Tries what is left once more. Not waited for: what is slow to end takes seconds each time. */
  clear(ground: LaunchGround): void {
    this.#clearing ??= this.#clear(ground)
      .catch((err: unknown) => this.#logger.warn({ err }, "what was deleted cannot be looked at"))
      .finally(() => {
        this.#clearing = undefined;
      });
  }

  async #clear(ground: LaunchGround): Promise<void> {
    for (const [what, remove] of [...this.#left]) {
      if (this.#hasGivenUp) return;
      await remove().then(
        () => this.#left.delete(what),
        () => undefined,
      );
    }
    await this.#lookAtTrash(ground);
  }

  /** A deletion goes on when its answer was given, in a process that may be killed alone. To delete what is being deleted does no harm. */
  async #lookAtTrash(ground: LaunchGround): Promise<void> {
    const nowMs = performance.now();
    const found = await this.#directories.listTrash();
    const before = this.#inTrash;
    const wait = (pauseMs: number) => ({ dueMs: nowMs + pauseMs, pauseMs });
    const isDue = (path: string) => (before.get(path)?.dueMs ?? Number.POSITIVE_INFINITY) <= nowMs;
    const next = (path: string) => {
      const known = before.get(path);
      if (known === undefined) return wait(trashMs);
      return isDue(path) ? wait(Math.min(known.pauseMs * 2, longestTrashMs)) : known;
    };
    this.#inTrash = new Map(found.map((path) => [path, next(path)]));
    for (const path of found.filter(isDue)) {
      if (this.#hasGivenUp) return;
      await this.removeDir(ground, path, { once: true }).catch((err: unknown) =>
        this.#logger.warn({ err }, `${path} is not gone yet, and is deleted later`),
      );
    }
  }

  /** Tries nothing any more. */
  giveUp(): void {
    this.#hasGivenUp = true;
    this.#left.clear();
  }

  /** What is being tried has come to its end when this resolves. */
  async settled(): Promise<void> {
    await this.#clearing;
  }
}
