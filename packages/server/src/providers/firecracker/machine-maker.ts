import { randomBytes } from "node:crypto";
import type { Logger } from "../../platform/logger.ts";
import { messageOf } from "../../platform/message-of.ts";
import type { ProcessIdentity } from "../../platform/process-identity.ts";
import {
  BadRequest,
  type CallOptions,
  type ImageConfig,
  ProviderError,
  type RuntimeId,
  type RuntimeSpec,
  StorageFull,
  type StoredImage,
  Unavailable,
} from "../../ports/index.ts";
import type { SharedTable } from "../agent/index.ts";
import { noteOf } from "../runtime-records/index.ts";
import type { ApiPatience } from "./api/index.ts";
import { ConnectedMachine } from "./connected-machine.ts";
import type { FirecrackerConfig } from "./firecracker-config.ts";
import { type Jail, programFile } from "./jails.ts";
import { bootMachine, configureAgent, MachineEnded, restoreMachine, withApi } from "./machine.ts";
import { closeOutput, MachineConsole } from "./machine-console.ts";
import type { MachineDisks } from "./machine-disks.ts";
import { startProcess } from "./machine-process.ts";
import type { MachineRemains } from "./machine-remains.ts";
import { type MachineSettings, settingsOf, snapshotSettings } from "./machine-settings.ts";
import type { MachineSnapshots } from "./machine-snapshots.ts";
import type { RuntimeRecord, RuntimeRecords } from "./runtime-records.ts";
import type { Tap } from "./tap-pool.ts";

/** How long parts of a boot may take, milliseconds. */
export interface BootPatience {
  /** Until Firecracker listens. */
  openMs: number;
  /** From the start of the machine until its agent answers. */
  bootMs: number;
  /** Until a restored agent, which serves already, answers; then its machine boots. */
  restoreMs: number;
  /** Requests to Firecracker; unset: the usual. */
  api?: Partial<ApiPatience>;
}

export const usualPatience: BootPatience = { openMs: 10_000, bootMs: 60_000, restoreMs: 10_000 };

/** What one machine is made of. */
export interface MachineOrder {
  spec: RuntimeSpec;
  image: StoredImage;
  tap: Tap | undefined;
  jail: Jail | undefined;
  /** Is told each part that is done. */
  stage: (name: string) => void;
}

/** What of a machine is there so far, for the errors and the undoing of it. */
export interface Made {
  console?: MachineConsole;
  machine?: ConnectedMachine;
}

/** Which snapshot a machine may be made of, whether it is there or not, and what would be made for it. */
export interface SnapshotChoice {
  key: string;
  settings: MachineSettings;
}

export interface MachineMakerParts {
  config: FirecrackerConfig;
  instanceId: string;
  patience: BootPatience;
  /** `processes`: guests have no control groups of their own and nothing to renew. */
  guests: "machines" | "processes";
  ringBytes: number | undefined;
  records: RuntimeRecords;
  disks: MachineDisks;
  remains: MachineRemains;
  /** Undefined: none are made. */
  snapshots: MachineSnapshots | undefined;
  watches: SharedTable;
  logger: Logger;
}

/** An order whose record is written. */
interface Making extends MachineOrder {
  record: RuntimeRecord;
  settings: MachineSettings;
}

/** Makes machines that belong to their sandboxes: restores them or boots them. Undoing what it left half-made is its caller's. */
export class MachineMaker {
  readonly #parts: MachineMakerParts;

  constructor(parts: MachineMakerParts) {
    this.#parts = parts;
  }

  /** @param made is told what is there, whatever becomes of the rest. */
  async make(
    order: MachineOrder,
    made: Made,
    options: CallOptions,
  ): Promise<{ machine: ConnectedMachine; snapshot: SnapshotChoice | undefined }> {
    const { spec, image, tap } = order;
    const { config, records } = this.#parts;
    const record = this.#recordOf(order);
    await records.save(record, spec.runtimeId);
    const settings = settingsOf(spec, { config, tap });
    const making: Making = { ...order, record, settings };
    const snapshot = tap === undefined ? await this.#snapshotFor(image, settings) : undefined;
    const machine =
      (await this.#restored(making, made, snapshot, options)) ??
      (await this.#bring(making, made, undefined, options));
    return { machine, snapshot };
  }

  /** The way to a machine that runs. Owns the console from now on. @throws RuntimeGone when its vsock is not there. */
  async connect(record: RuntimeRecord, console: MachineConsole): Promise<ConnectedMachine> {
    const { remains, guests, watches, logger } = this.#parts;
    return ConnectedMachine.open({
      record,
      folder: await remains.insideOf(record.runtimeId as RuntimeId, record),
      console,
      ownGroups: guests === "machines",
      watches,
      logger,
    });
  }

  /** What a client is told of a machine that did not come up: with the last that its console says. */
  async explain(
    error: unknown,
    { runtimeId, image, console }: { runtimeId: RuntimeId; image: string } & Made,
  ): Promise<unknown> {
    // What was refused before there was a machine, or by its agent, speaks for itself.
    const isOfMachine = error instanceof MachineEnded || error instanceof ProviderError;
    if (console === undefined || !(isOfMachine || error instanceof Unavailable)) return error;
    await console.drain();
    const said = await this.#parts.records.lastWords(runtimeId);
    return new ProviderError(
      `the microVM of image "${image}" did not come up: ${messageOf(error)}; the last of its console: ${said}`,
      { cause: error },
    );
  }

  async #snapshotFor(image: StoredImage, settings: MachineSettings): Promise<SnapshotChoice | undefined> {
    const { config, snapshots, disks, logger } = this.#parts;
    if (snapshots === undefined) return undefined;
    const own = snapshotSettings(settings, config);
    const { memoryMb, vcpus, kernel, initrd, bootArguments } = own;
    try {
      const program = await programFile(config.firecrackerPath);
      const key = await snapshots.keyOf({
        rootfs: await disks.rootfsOf(image),
        memoryMb,
        vcpus,
        bootArguments,
        files: [kernel, ...(initrd === undefined ? [] : [initrd]), program],
        bounds: [config.diskMb, config.diskRateMb],
      });
      return { key, settings: own };
    } catch (err) {
      logger.debug({ err }, "what a snapshot would be of cannot be read; the boot says more");
      return undefined;
    }
  }

  /**
   * @returns undefined when there is no such snapshot, or none that can be restored: it is removed then, and the machine boots.
   * @throws what says nothing of the snapshot: what was asked for is refused, or the disk is full.
   */
  async #restored(
    making: Making,
    made: Made,
    snapshot: SnapshotChoice | undefined,
    options: CallOptions,
  ): Promise<ConnectedMachine | undefined> {
    const { snapshots, records, disks, remains, logger } = this.#parts;
    if (snapshot === undefined || !(await snapshots?.has(snapshot.key))) return undefined;
    const { runtimeId } = making.spec;
    try {
      return await this.#bring(making, made, snapshot.key, options);
    } catch (err) {
      options.signal.throwIfAborted();
      if (err instanceof BadRequest || err instanceof StorageFull) throw err;
      logger.warn({ err, runtime_id: runtimeId }, "a snapshot cannot be restored and is removed");
      await (made.machine ?? made.console)?.[Symbol.asyncDispose]();
      delete made.machine;
      delete made.console;
      await snapshots?.discard(snapshot.key);
      await remains.kill(runtimeId, await records.readIfWhole(runtimeId), options);
      await disks.remove(runtimeId);
      // A service that dies before the next process is written down finds that one by its arguments.
      await records.save(making.record, runtimeId);
      return undefined;
    }
  }

  /** Has a machine run and belong to its sandbox: booted, or restored from the snapshot of that key. */
  async #bring(
    making: Making,
    made: Made,
    snapshot: string | undefined,
    options: CallOptions,
  ): Promise<ConnectedMachine> {
    const { spec, image, record, jail, settings, stage } = making;
    const { records, disks, snapshots, patience, guests } = this.#parts;
    const { runtimeId } = spec;
    const rootfs = await disks.make(runtimeId, image, { ...options, jail });
    const folder = disks.insideOf(runtimeId, jail);
    const files =
      snapshot === undefined
        ? await disks.bootFiles(runtimeId, settings, { ...options, jail })
        : await snapshots?.lend(snapshot, folder, { ...options, owner: jail });
    stage("disks");
    made.console = await MachineConsole.open(records.folder(runtimeId), options);
    options.signal.throwIfAborted();
    const process = await this.#start(runtimeId, jail);
    const complete: RuntimeRecord = { ...record, rootfs, process };
    await records.save(complete, runtimeId);
    stage("launch");
    const { openMs, bootMs, restoreMs, api = {} } = patience;
    await withApi({ process, folder, openMs, patience: api }, options, (firecracker) =>
      snapshot === undefined
        ? bootMachine(firecracker, { ...settings, ...files }, options)
        : restoreMachine(firecracker, options),
    );
    stage(snapshot === undefined ? "boot" : "restore");
    const machine = await this.connect(complete, made.console);
    made.machine = machine;
    const answerMs = snapshot === undefined ? bootMs : restoreMs;
    await this.#configure(machine, spec, image.config, { ...options, process, bootMs: answerMs });
    if (snapshot !== undefined && guests === "machines")
      await machine.client.renew(
        { realtime: new Date(), entropy: randomBytes(64), hostname: spec.sandboxId },
        options,
      );
    stage("agent");
    return machine;
  }

  #recordOf({ spec, image, tap, jail }: MachineOrder): RuntimeRecord {
    return {
      version: 1,
      instanceId: this.#parts.instanceId,
      runtimeId: spec.runtimeId,
      sandboxId: spec.sandboxId,
      token: randomBytes(32).toString("hex"),
      image: image.name,
      folder: this.#parts.disks.machineFolder(spec.runtimeId),
      createdAt: new Date().toISOString(),
      sandbox: noteOf(spec),
      ...(tap === undefined ? {} : { tap: tap.name }),
      ...(jail === undefined ? {} : { jail: { inside: jail.inside, uid: jail.uid } }),
    };
  }

  async #start(runtimeId: RuntimeId, jail: Jail | undefined): Promise<ProcessIdentity> {
    const { records, disks, config } = this.#parts;
    const output = MachineConsole.output(records.folder(runtimeId));
    try {
      const folder = disks.machineFolder(runtimeId);
      const program = config.firecrackerPath;
      const process = await startProcess({ program, folder, jail, runtimeId, output });
      if (process === undefined) throw new MachineEnded("Firecracker ended at once");
      return process;
    } finally {
      closeOutput(output);
    }
  }

  #configure(
    machine: ConnectedMachine,
    spec: RuntimeSpec,
    config: ImageConfig,
    options: CallOptions & { process: ProcessIdentity; bootMs: number },
  ): Promise<void> {
    const user = spec.user ?? config.user;
    const workdir = spec.workdir ?? config.workdir;
    const { ringBytes } = this.#parts;
    const request = {
      sandboxId: spec.sandboxId,
      env: { ...config.env, ...spec.env },
      expiresInMs: spec.expiresInMs,
      ...(user === undefined ? {} : { user }),
      ...(workdir === undefined ? {} : { workdir }),
      ...(ringBytes === undefined ? {} : { ringBytes }),
    };
    return configureAgent(machine.client, request, options);
  }
}
