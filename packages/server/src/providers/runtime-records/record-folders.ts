import { randomUUID } from "node:crypto";
import { chmod, mkdir, open, readdir, readFile, rename } from "node:fs/promises";
import { basename, dirname, join } from "node:path";
import type { Static, TSchema } from "typebox";
import { Compile, type Validator } from "typebox/compile";
import { orMissing } from "../../platform/missing.ts";
import { BadRequest, type RuntimeId, Unavailable } from "../../ports/index.ts";
import { consoleLines } from "./console-lines.ts";
import { HeldFolder } from "./held-folder.ts";

const recordName = "runtime.json";

/** There is a record that this release cannot understand; whoever wrote it may. Its runtime is not touched. */
export class UnreadableRecord extends Unavailable {
  constructor(runtimeId: string, why: string, options: { cause?: unknown } = {}) {
    super(`the record of runtime ${runtimeId} cannot be read by this release: ${why}`, options);
  }
}

/** Checks of schemas, made at the first use: a record is read at every spawn and destroy, and interpreting costs 100 times as much. */
const checks = new WeakMap<TSchema, Validator>();

function checkOf(schema: TSchema): Validator {
  const known = checks.get(schema);
  if (known !== undefined) return known;
  const check = Compile(schema);
  checks.set(schema, check);
  return check;
}

/** @throws UnreadableRecord for what is not of this schema, which names the record's version. */
export function parseRecord<S extends TSchema>(schema: S, text: string, runtimeId: string): Static<S> {
  let record: unknown;
  try {
    record = JSON.parse(text);
  } catch (error) {
    throw new UnreadableRecord(runtimeId, "it is no JSON", { cause: error });
  }
  const matches: boolean = checkOf(schema).Check(record);
  if (matches) return record as Static<S>;
  const version = record !== null && typeof record === "object" && "version" in record ? record.version : 0;
  throw new UnreadableRecord(runtimeId, `its version is ${JSON.stringify(version)}, or its shape is another`);
}

/** `<dataDir>/runtimes/<provider>`: a folder for each runtime, with a record that is whole or not there. */
export class RecordFolders<S extends TSchema> implements AsyncDisposable {
  readonly root: string;
  readonly #held: HeldFolder;
  readonly #schema: S;
  readonly #mode: number;
  readonly #rootMode: number;

  /**
   * @param options.mode of the folders: who else than the service may pass through them.
   * @param options.rootMode of the folder they are in; unset: the same.
   */
  constructor(options: { dataDir: string; provider: string; schema: S; mode: number; rootMode?: number }) {
    this.root = join(options.dataDir, "runtimes", options.provider);
    this.#held = new HeldFolder(this.root);
    this.#schema = options.schema;
    this.#mode = options.mode;
    this.#rootMode = options.rootMode ?? options.mode;
  }

  /** @throws BadRequest for an id that is not fit to name a folder. */
  folder(runtimeId: string): string {
    if (!isRuntimeId(runtimeId)) {
      throw new BadRequest(`runtime id ${JSON.stringify(runtimeId)} cannot name a folder`);
    }
    return join(this.root, runtimeId);
  }

  /** A path to the same folder that is short, and leads there while the folders are out of sight; in this process alone. */
  async steadyFolder(runtimeId: string): Promise<string> {
    return join(await this.#held.steadyPath(), basename(this.folder(runtimeId)));
  }

  /**
   * Writes the record down for good, before anything it describes exists.
   * @throws Unavailable while the folders are out of sight.
   */
  async save(record: Static<S>, runtimeId: string): Promise<void> {
    const folder = this.folder(runtimeId);
    await this.#held.inSight();
    const made = await mkdir(folder, { recursive: true, mode: this.#mode });
    if (made !== undefined) {
      await chmod(this.root, this.#rootMode);
      await chmod(dirname(this.root), 0o711);
    }
    const draft = join(folder, `.${recordName}.${randomUUID()}`);
    const file = await open(draft, "wx", 0o600);
    try {
      await file.writeFile(JSON.stringify(record));
      await file.sync();
    } finally {
      await file.close();
    }
    await rename(draft, join(folder, recordName));
    // Both at once: the file system makes one write of them.
    await Promise.all([syncFolder(folder), made === undefined ? undefined : syncFolder(dirname(folder))]);
  }

  /** @returns undefined when there is none. @throws UnreadableRecord */
  async read(runtimeId: string): Promise<Static<S> | undefined> {
    const text = await orMissing(readFile(join(this.folder(runtimeId), recordName), "utf8"), undefined);
    if (text === undefined) return undefined;
    return parseRecord(this.#schema, text, runtimeId);
  }

  /** For undoing, which goes on without a record. @returns undefined when there is none that can be read. */
  async readIfWhole(runtimeId: string): Promise<Static<S> | undefined> {
    try {
      return await this.read(runtimeId);
    } catch (error) {
      if (error instanceof UnreadableRecord) return undefined;
      throw error;
    }
  }

  /** Ids of every folder, whether or not it holds a record. @throws Unavailable while the folders are out of sight. */
  async list(): Promise<RuntimeId[]> {
    if (!(await this.#held.inSight())) return [];
    return (await readdir(this.root)).filter(isRuntimeId);
  }

  /** @returns false when there never were any. @throws Unavailable when those that were there are out of sight. */
  inSight(): Promise<boolean> {
    return this.#held.inSight();
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.#held[Symbol.asyncDispose]();
  }

  /** The last lines of a console, newest last. @returns undefined when there is none. */
  consoleLines(runtimeId: string, lines: number): Promise<string[] | undefined> {
    return consoleLines(this.folder(runtimeId), lines);
  }
}

function isRuntimeId(name: string): name is RuntimeId {
  return /^[a-zA-Z0-9][a-zA-Z0-9_-]{0,63}$/.test(name);
}

async function syncFolder(path: string): Promise<void> {
  const folder = await open(path, "r");
  try {
    await folder.sync();
  } finally {
    await folder.close();
  }
}
