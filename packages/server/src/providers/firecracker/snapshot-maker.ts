import { join } from "node:path";
import { setTimeout as delay } from "node:timers/promises";
import { deadlineAfter } from "../../platform/deadline.ts";
import type { Logger } from "../../platform/logger.ts";
import { orMissing } from "../../platform/missing.ts";
import { isAlive, type ProcessIdentity } from "../../platform/process-identity.ts";
import { randomIds } from "../../platform/random-ids.ts";
import {
  type CallOptions,
  ProviderError,
  type RuntimeId,
  StorageFull,
  type StoredImage,
} from "../../ports/index.ts";
import { pinnedVsockDialer } from "../agent/index.ts";
import { agentPort } from "./boot-arguments.ts";
import type { Jail, Jails } from "./jails.ts";
import { bootMachine, withApi } from "./machine.ts";
import { closeOutput, MachineConsole } from "./machine-console.ts";
import type { MachineDisks } from "./machine-disks.ts";
import { findProcesses, killProcess, startProcess, vsockSocket } from "./machine-process.ts";
import type { MachineSettings } from "./machine-settings.ts";
import { type MachineSnapshots, memoryFile, stateFile } from "./machine-snapshots.ts";

/** How ids of machines begin that are made for a snapshot alone; no runtime's does. */
const idPrefix = "sn-";
/** All of one, on a slow disk. */
const makeMs = 10 * 60_000;
/** What failed is tried again by a spawn after so long. */
const pauseMs = 10 * 60_000;
const undoMs = 20_000;
const askPauseMs = 50;
/** Nobody waits for a snapshot: it leaves so many times what is kept free, so that no spawn is refused for it. */
const keptFreeTimes = 1.25;

/** Makes snapshots, one at a time, of machines that nobody sees. A spawn never waits for it. */
export class SnapshotMaker implements AsyncDisposable {
  readonly #snapshots: MachineSnapshots;
  readonly #disks: MachineDisks;
  readonly #jails: Jails | undefined;
  readonly #program: string;
  readonly #openMs: number;
  readonly #bootMs: number;
  readonly #minFreeMb: number;
  readonly #freeMb: () => Promise<number | undefined>;
  readonly #logger: Logger;
  readonly #closing = new AbortController();
  readonly #failedAt = new Map<string, number>();
  #underWay: Promise<void> | undefined;

  constructor(options: {
    snapshots: MachineSnapshots;
    disks: MachineDisks;
    jails: Jails | undefined;
    /** Firecracker. */
    program: string;
    openMs: number;
    bootMs: number;
    minFreeMb: number;
    /** Of the disk that snapshots are on; undefined: it cannot be seen. */
    freeMb: () => Promise<number | undefined>;
    logger: Logger;
  }) {
    this.#snapshots = options.snapshots;
    this.#disks = options.disks;
    this.#jails = options.jails;
    this.#program = options.program;
    this.#openMs = options.openMs;
    this.#bootMs = options.bootMs;
    this.#minFreeMb = options.minFreeMb;
    this.#freeMb = options.freeMb;
    this.#logger = options.logger;
  }

  /** Removes what a service that died left of one that was under way. */
  async open(): Promise<void> {
    await endUnfinished(this.#disks);
    await this.#snapshots.open();
  }

  /** Begins one in the background, unless one is under way or it failed of late. */
  begin(key: string, image: StoredImage, settings: Omit<MachineSettings, "tap">): void {
    const failedAt = this.#failedAt.get(key);
    const isTooSoon = failedAt !== undefined && performance.now() - failedAt < pauseMs;
    if (this.#underWay !== undefined || isTooSoon || this.#closing.signal.aborted) return;
    this.#underWay = this.#make(key, image, { ...settings, tap: undefined })
      .catch((err: unknown) => {
        this.#failedAt.set(key, performance.now());
        if (!this.#closing.signal.aborted)
          this.#logger.warn({ err, image: image.name }, "a snapshot of an image could not be made");
      })
      .finally(() => {
        this.#underWay = undefined;
      });
  }

  /** For tests: resolves when nothing is under way. */
  async settled(): Promise<void> {
    await this.#underWay;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#closing.abort();
    await this.#underWay;
  }

  async #make(key: string, image: StoredImage, settings: MachineSettings): Promise<void> {
    if (await this.#snapshots.has(key)) return;
    await this.#refuseWhenShort(settings.memoryMb);
    const id = `${idPrefix}${randomIds.runtimeId().slice(3)}` as RuntimeId;
    using deadline = deadlineAfter(makeMs, this.#closing.signal);
    const options = { signal: deadline.signal };
    try {
      const jail = await this.#jails?.take(id);
      const rootfs = await this.#disks.make(id, image, { ...options, jail });
      const files = await this.#disks.bootFiles(id, settings, { ...options, jail });
      const folder = this.#disks.insideOf(id, jail);
      const process = await this.#start(id, jail, options);
      await withApi({ process, folder, openMs: this.#openMs, patience: {} }, options, async (api) => {
        await bootMachine(api, { ...settings, ...files }, options);
        await this.#serves(folder, process, options);
        await api.pause(options);
        await api.createSnapshot({ snapshot_path: stateFile, mem_file_path: memoryFile }, options);
      });
      await killProcess(process, options);
      await this.#snapshots.keep(key, folder, { image: image.name, kernel: settings.kernel, rootfs });
      this.#logger.info({ image: image.name }, "a snapshot of an image was made");
    } finally {
      using undo = deadlineAfter(undoMs);
      await this.#remove(id, undo);
    }
  }

  /** @throws StorageFull: what fills the disk takes what machines have written that run. */
  async #refuseWhenShort(memoryMb: number): Promise<void> {
    const freeMb = await this.#freeMb();
    if (freeMb === undefined || freeMb - memoryMb >= this.#minFreeMb * keptFreeTimes) return;
    throw new StorageFull(
      `a snapshot takes ${memoryMb} MB, and the disk of the microVMs has ${Math.floor(freeMb)} MB free, of which providers.firecracker.min_free_mb and a quarter more stay free`,
    );
  }

  async #start(id: RuntimeId, jail: Jail | undefined, options: CallOptions): Promise<ProcessIdentity> {
    const folder = this.#disks.machineFolder(id);
    await using _console = await MachineConsole.open(folder, options);
    const output = MachineConsole.output(folder);
    try {
      const started = await startProcess({ program: this.#program, folder, jail, runtimeId: id, output });
      if (started === undefined) throw new ProviderError("Firecracker ended at once");
      return started;
    } finally {
      closeOutput(output);
    }
  }

  /** Its agent takes connections: whoever is restored from it answers at once. */
  async #serves(folder: string, process: ProcessIdentity, { signal }: CallOptions): Promise<void> {
    using deadline = deadlineAfter(this.#bootMs, signal);
    const pinned = await pinnedVsockDialer(join(folder, vsockSocket), agentPort);
    try {
      for (;;) {
        try {
          (await pinned.dial(deadline)).destroy();
          return;
        } catch (error) {
          deadline.signal.throwIfAborted();
          if (!(await isAlive(process))) throw error;
        }
        await delay(askPauseMs);
      }
    } finally {
      await pinned.close();
    }
  }

  async #remove(id: RuntimeId, options: CallOptions): Promise<void> {
    await end(this.#disks, id, options);
    this.#jails?.giveBack(id);
  }
}

/** Ends machines that a service which died was making snapshots of: no record names them, and nothing else ends them. */
export async function endUnfinished(disks: MachineDisks): Promise<void> {
  using deadline = deadlineAfter(undoMs);
  for (const name of await disks.machines())
    if (name.startsWith(idPrefix)) await end(disks, name as RuntimeId, deadline);
}

async function end(disks: MachineDisks, id: RuntimeId, options: CallOptions): Promise<void> {
  for (const identity of await findProcesses(id)) await killProcess(identity, options);
  await orMissing(disks.remove(id), undefined);
}
