import { rm } from "node:fs/promises";
import { join } from "node:path";
import { exists } from "../../platform/missing.ts";
import type { CallOptions, RuntimeId } from "../../ports/index.ts";
import type { MachineDisks } from "./machine-disks.ts";
import { findProcesses, killProcess } from "./machine-process.ts";
import type { RuntimeRecord, RuntimeRecords } from "./runtime-records.ts";

/** What is left of a machine on its host, process and folder, wherever its record says that they are. */
export class MachineRemains {
  readonly #records: RuntimeRecords;
  readonly #disks: MachineDisks;
  readonly #usualFolder: string;

  constructor(options: { dataDir: string; records: RuntimeRecords; disks: MachineDisks }) {
    this.#records = options.records;
    this.#disks = options.disks;
    this.#usualFolder = join(options.dataDir, "firecracker/machines");
  }

  /** Where its drives and sockets are. */
  async insideOf(runtimeId: RuntimeId, record: RuntimeRecord | undefined): Promise<string> {
    const folders = this.#foldersOf(runtimeId, record);
    for (const folder of folders) if (await exists(folder)) return join(folder, record?.jail?.inside ?? "");
    return this.#disks.insideOf(runtimeId, record?.jail);
  }

  /** Its disks end with it: nothing of a machine is worth an orderly end. */
  async kill(runtimeId: RuntimeId, record: RuntimeRecord | undefined, options: CallOptions): Promise<void> {
    if (record?.process !== undefined) return killProcess(record.process, options);
    if (!(await exists(this.#records.folder(runtimeId)))) return;
    for (const identity of await findProcesses(runtimeId)) await killProcess(identity, options);
  }

  /** Ends it and removes its folder; its record stays. */
  async remove(runtimeId: RuntimeId, record: RuntimeRecord | undefined, options: CallOptions): Promise<void> {
    await this.kill(runtimeId, record, options);
    for (const folder of this.#foldersOf(runtimeId, record))
      await rm(folder, { recursive: true, force: true });
  }

  /** Where a machine's folder may be: `providers.firecracker.data_dir` may have been another one when it was made. */
  #foldersOf(runtimeId: RuntimeId, record: RuntimeRecord | undefined): string[] {
    const usual = join(this.#usualFolder, runtimeId);
    const named = record?.folder === undefined ? [] : [record.folder];
    return [...new Set([this.#disks.machineFolder(runtimeId), ...named, usual])];
  }
}
