import { randomBytes, randomUUID } from "node:crypto";
import { existsSync, readFileSync, rmSync } from "node:fs";
import { open, readdir, rename, rm } from "node:fs/promises";
import path from "node:path";
import { databaseOfItsOwn, foreignDatabase, ownerOf, takeDatabase } from "./database-owner.ts";
import { type FileIdentity, identifyFile, isFileIdentity, sameFile } from "./file-identity.ts";
import { LateWrites } from "./late-writes.ts";

const fileName = "installation.json";
/** Says how far the installation is, and is part of no backup: what is put back beside it shows as older. */
const newestName = ".newest.json";
/** What earlier releases made below a data directory at their first start. */
const signsOfUse = ["agents", "runtimes", "images"];

/** Setting: as `events` of `.newest.json`, and written before that; behind it the generation that this was known in. */
const eventsMark = "events_mark";

/** Sandboxes made, or extended, within this time share one mark, the first of a process apart: it has its own before it is answered. */
const advanceAfterMs = 2_000;

/** What a full disk keeps from being written at the start is tried again so often. */
const lateAfterMs = 60_000;

/** `installation.json`: which installation lives in this directory. The database says the same of itself. */
interface InstallationFile {
  version: 1;
  id: string;
  /** Grows as sandboxes are made and extended, in the database first: a database with a smaller one is an older state. */
  generation: number;
  directory: FileIdentity;
  /** As the setting of the database, so that either may be lost. Earlier releases wrote none. */
  noteKey?: string;
}

/** Setting: the key of `Installation.noteKey`. */
const noteKeySetting = "note_key";
const noteKeyBytes = 32;

/** What the database keeps of an installation. */
export interface InstallationSettings {
  /** The database's own identity; `candidate` becomes it when it has none. */
  instanceId(candidate: string): Promise<string>;
  setting(name: string): Promise<string | undefined>;
  changeSetting(name: string, value: string): Promise<void>;
}

/** What is here is a copy, or belongs to another installation: whatever its records name may be somebody else's. */
export class ForeignDataDir extends Error {
  constructor(
    dataDir: string,
    reason: string,
    wayOn = `"alcove restore --data-dir ${dataDir}" makes it an installation of its own, without those sandboxes`,
  ) {
    super(
      `the data directory ${dataDir} ${reason}. Nothing was touched: the sandboxes it knows may be another service's. ${wayOn}`,
    );
    this.name = "ForeignDataDir";
  }
}

/**
 * Which installation this is: put on every runtime, group and container, so that two services on one machine never
 * touch each other's.
 */
export class Installation implements AsyncDisposable {
  readonly id: string;
  /** Signs what is written down of sandboxes where somebody else keeps it. The same for as long as the installation lives. */
  readonly noteKey: Uint8Array;
  /** The database was made anew, or is older than this directory: what stands in it alone is gone or of that time. */
  readonly databaseLost: boolean;
  /** The database knows this directory, which does not say itself what it is: whether the database is the newest one, nobody knows. */
  readonly markLost: boolean;
  /** Ids of events up to this one may have been given that the database does not know of; 0: it knows all. */
  readonly eventsGivenUpto: number;
  #events: number;
  #recovering: boolean;
  #timer: NodeJS.Timeout | undefined;
  /** This process has marked the directory as newer than any database that was there before it. */
  #marked: Promise<void> | undefined;
  readonly #dataDir: string;
  readonly #settings: InstallationSettings;
  #file: InstallationFile;
  #writing: Promise<void> = Promise.resolve();
  /** What the start could not write: nothing is marked as newer before it is there. */
  readonly #late: LateWrites;
  #lateTimer: NodeJS.Timeout | undefined;

  private constructor(options: {
    dataDir: string;
    settings: InstallationSettings;
    late: LateWrites;
    file: InstallationFile & { noteKey: string };
    recovering: boolean;
    databaseLost: boolean;
    markLost: boolean;
    events: { upto: number; unknown: boolean };
  }) {
    this.#dataDir = options.dataDir;
    this.#settings = options.settings;
    this.#late = options.late;
    this.#file = options.file;
    this.id = options.file.id;
    this.noteKey = Buffer.from(options.file.noteKey, "hex");
    this.#recovering = options.recovering;
    this.databaseLost = options.databaseLost;
    this.markLost = options.markLost;
    this.#events = options.events.upto;
    this.eventsGivenUpto = options.events.unknown ? options.events.upto : 0;
  }

  /**
   * Recognises the installation of a directory that this process has locked, or makes one.
   * @param options.database its file; without one it is taken for the directory's own.
   * @param options.outlived whether something of the installation is younger than the database, by what stands beside it.
   * @param options.onUnwritten told what a full disk keeps from being written; it is tried again until it is there.
   * @throws ForeignDataDir when directory and identity do not belong together.
   */
  static async open(options: {
    dataDir: string;
    settings: InstallationSettings;
    newId: string;
    database?: string;
    outlived?: (id: string) => Promise<boolean>;
    onUnwritten?: (what: string, error: unknown) => void;
  }): Promise<Installation> {
    const { dataDir, settings, database, outlived = async () => false } = options;
    const late = new LateWrites(options.onUnwritten ?? (() => undefined));
    const directory = identifyFile(dataDir);
    const written = readInstallation(dataDir);
    const known = await settings.setting("instance_id");
    const foreign =
      database === undefined
        ? undefined
        : await foreignDatabase({ dataDir, file: database, settings, written: written?.directory });
    const ownDatabase = (command: string) =>
      foreign === undefined ? undefined : databaseOfItsOwn(foreign, dataDir, command);
    if (written !== undefined && !sameFile(written.directory, directory)) {
      throw new ForeignDataDir(dataDir, `is a copy of ${written.directory.path}`, ownDatabase("restore"));
    }
    if (written !== undefined && known !== undefined && known !== written.id) {
      const reason = "and its database belong to different installations";
      throw new ForeignDataDir(dataDir, reason, ownDatabase("serve"));
    }
    const used = await runtimesIn(dataDir);
    if (written === undefined && known !== undefined && !used && !hasSignsOfUse(dataDir)) {
      const reason = "is new, but its database belongs to an installation elsewhere";
      throw new ForeignDataDir(dataDir, reason, ownDatabase("serve"));
    }
    const owner = await ownerOf(settings);
    if (written === undefined && owner !== undefined && !sameFile(owner.directory, directory)) {
      const reason = `does not say what it is, and its database was last that of ${owner.directory.path}`;
      throw new ForeignDataDir(dataDir, reason, ownDatabase("restore"));
    }
    await removeDrafts(dataDir);
    const id = await settings.instanceId(written?.id ?? options.newId);
    const stored = Number((await settings.setting("generation")) ?? 0);
    // One of a backup is as old as the database beside it; what was left here then knows better.
    const newest = newestOf(dataDir, id);
    const generation = Math.max(written?.generation ?? stored, newest.generation);
    const markLost = written === undefined && known !== undefined;
    const older = known === undefined ? used || generation > 0 : stored < generation || (await outlived(id));
    const recovering = older || markLost;
    const databaseLost = older || (written !== undefined && known === undefined);
    const kept = await settings.setting(noteKeySetting);
    const noteKey = [written?.noteKey, kept].find(isNoteKey) ?? newNoteKey();
    const file = {
      version: 1 as const,
      id,
      generation: Math.max(generation, recovering ? stored + 1 : stored),
      directory,
      noteKey,
    };
    const mark = (await settings.setting(eventsMark))?.split(" ").map(Number);
    const [eventsKnown = 0, knownIn = 0] = mark ?? [];
    const events = {
      upto: Math.max(newest.events, eventsKnown),
      // One that could not be brought up to date before has passed them over all the same.
      unknown: eventsKnown < newest.events || (databaseLost && knownIn < file.generation),
    };
    const installation = new Installation({
      dataDir,
      settings,
      late,
      file,
      recovering,
      databaseLost,
      markLost,
      events,
    });
    // A full disk is no reason not to start.
    if (database !== undefined)
      await late.write("whose the database is", () => takeDatabase({ dataDir, file: database, settings }));
    if (kept !== noteKey)
      await late.write("the key that signs labels, in the database", () =>
        settings.changeSetting(noteKeySetting, noteKey),
      );
    const write = () => installation.#write(installation.#file);
    // Without an identity, or beside a database that lacks sandboxes, the next process would not know what this one did.
    if (written === undefined || (recovering && written.generation !== file.generation)) await write();
    else if (JSON.stringify(file) !== JSON.stringify(written))
      await late.write(
        `${written.noteKey === noteKey ? "how far the installation is" : "the key that signs labels"}, in ${fileName}`,
        write,
      );
    installation.#tryAgain();
    return installation;
  }

  /** The database is new, or older than the runtimes of this directory: it may lack sandboxes that run. */
  get recovering(): boolean {
    return this.#recovering;
  }

  /** Something was found that is younger than the database. It is written down, so that the next process goes on with it. */
  async outlived(): Promise<void> {
    if (this.#recovering) return;
    this.#recovering = true;
    this.#writing = this.#writing
      .catch(() => undefined)
      .then(() => this.#write({ ...this.#file, generation: this.#file.generation + 1 }));
    await this.#writing;
  }

  /** Ids of events up to this one may be given once this is done. */
  async markEvents(upto: number): Promise<void> {
    this.#writing = this.#writing
      .catch(() => undefined)
      .then(async () => {
        await this.#settings.changeSetting(eventsMark, `${upto} ${this.#file.generation}`);
        this.#events = upto;
        await this.#writeNewest(this.#file);
      });
    await this.#writing;
  }

  /** Every sandbox that the database lacked is in it again. */
  async recovered(): Promise<void> {
    if (!this.#recovering) return;
    this.#recovering = false;
    this.#marked = this.#advance();
    await this.#marked;
  }

  /**
   * A sandbox was made, or will live longer: a database that does not know it is recognised as an older one. One from before this process is
   * so when this resolves, one that was copied while it runs shortly afterwards. Does not fail.
   */
  async advanced(onError: (error: unknown) => void): Promise<void> {
    if (this.#recovering) return;
    if (this.#marked === undefined) {
      this.#marked = this.#advance();
      this.#marked.catch(() => {
        this.#marked = undefined;
      });
      return this.#marked.catch(onError);
    }
    await this.#marked.catch(() => undefined);
    if (this.#timer !== undefined) return;
    this.#timer = setTimeout(() => {
      this.#timer = undefined;
      void this.#advance().catch(onError);
    }, advanceAfterMs);
    this.#timer.unref();
  }

  async [Symbol.asyncDispose](): Promise<void> {
    if (this.#timer !== undefined) {
      clearTimeout(this.#timer);
      this.#timer = undefined;
      await this.#advance().catch(() => undefined);
    }
    clearInterval(this.#lateTimer);
    await this.#writeLate().catch(() => undefined);
  }

  #tryAgain(): void {
    if (this.#late.waiting === 0) return;
    this.#lateTimer = setInterval(() => {
      void this.#writeLate()
        .then(() => clearInterval(this.#lateTimer))
        .catch(() => undefined);
    }, lateAfterMs);
    this.#lateTimer.unref();
  }

  async #writeLate(): Promise<void> {
    this.#writing = this.#writing.catch(() => undefined).then(() => this.#late.again());
    await this.#writing;
  }

  async #advance(): Promise<void> {
    this.#writing = this.#writing
      .catch(() => undefined)
      .then(async () => {
        await this.#late.again();
        const file = { ...this.#file, generation: this.#file.generation + 1 };
        await this.#settings.changeSetting("generation", String(file.generation));
        await this.#write(file);
      });
    await this.#writing;
  }

  async #write(file: InstallationFile): Promise<void> {
    await writeInstallation(this.#dataDir, file);
    await this.#writeNewest(file);
    this.#file = file;
  }

  #writeNewest({ id, generation }: InstallationFile): Promise<void> {
    const newest: Newest = { id, generation, events: this.#events };
    return writeWhole(this.#dataDir, newestName, newest);
  }
}

/** Setting: sandboxes made until then had their runtimes in the installation that this one was copied from. */
export const restoredAt = "restored_at";

/** Gives a directory, and the database in it, a new identity. Its old one may go on elsewhere. */
export async function renewInstallation(options: {
  dataDir: string;
  settings: InstallationSettings;
  newId: string;
  now: Date;
}): Promise<void> {
  const { dataDir, settings, newId: id, now } = options;
  await settings.changeSetting(restoredAt, now.toISOString());
  await settings.instanceId(id);
  await settings.changeSetting("instance_id", id);
  await settings.changeSetting("generation", "0");
  const noteKey = newNoteKey();
  await settings.changeSetting(noteKeySetting, noteKey);
  await writeInstallation(dataDir, {
    version: 1,
    id,
    generation: 0,
    directory: identifyFile(dataDir),
    noteKey,
  });
}

function newNoteKey(): string {
  return randomBytes(noteKeyBytes).toString("hex");
}

function isNoteKey(key: unknown): key is string {
  return typeof key === "string" && key.length === 2 * noteKeyBytes && /^[0-9a-f]*$/.test(key);
}

function readInstallation(dataDir: string): InstallationFile | undefined {
  let text: string;
  try {
    text = readFileSync(path.join(dataDir, fileName), "utf8");
  } catch (error) {
    if (error instanceof Error && "code" in error && error.code === "ENOENT") return undefined;
    throw error;
  }
  const found = parsed(text);
  if (found === undefined) {
    throw new ForeignDataDir(
      dataDir,
      `holds an ${fileName} that cannot be read`,
      `Where the directory is no copy, remove ${path.join(dataDir, fileName)}: the database knows the identity and the ` +
        `sandboxes stay. Of a copy, "alcove restore --data-dir ${dataDir}" makes an installation of its own`,
    );
  }
  return found;
}

function parsed(text: string): InstallationFile | undefined {
  try {
    const found = JSON.parse(text) as Partial<InstallationFile> | null;
    const whole =
      typeof found?.id === "string" &&
      typeof found.generation === "number" &&
      isFileIdentity(found.directory);
    return whole ? (found as InstallationFile) : undefined;
  } catch {
    return undefined;
  }
}

/** `.newest.json` */
interface Newest extends Pick<InstallationFile, "id" | "generation"> {
  /** Ids of events up to this one may have been given. */
  events: number;
}

/** Zeros where it says nothing of this installation. */
function newestOf(dataDir: string, id: string): Pick<Newest, "generation" | "events"> {
  const nothing = { generation: 0, events: 0 };
  try {
    const found = JSON.parse(readFileSync(path.join(dataDir, newestName), "utf8")) as Partial<Newest> | null;
    if (found?.id !== id) return nothing;
    return { generation: wholeNumber(found.generation), events: wholeNumber(found.events) };
  } catch {
    return nothing;
  }
}

function wholeNumber(found: number | undefined): number {
  return Number.isSafeInteger(found) ? (found ?? 0) : 0;
}

function writeInstallation(dataDir: string, file: InstallationFile): Promise<void> {
  return writeWhole(dataDir, fileName, file);
}

/** What a process leaves that is killed while it writes; this one has the directory for itself. */
async function removeDrafts(dataDir: string): Promise<void> {
  const names = await readdir(dataDir);
  const drafts = names.filter((name) => [fileName, newestName].some((of) => isDraftOf(of, name)));
  for (const name of drafts) await rm(path.join(dataDir, name), { force: true }).catch(() => undefined);
}

const uuid = /^[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}$/;

function isDraftOf(name: string, found: string): boolean {
  const prefix = draftPrefix(name);
  return found.startsWith(prefix) && uuid.test(found.slice(prefix.length));
}

function draftPrefix(name: string): string {
  return `${name.startsWith(".") ? "" : "."}${name}.`;
}

async function writeWhole(dataDir: string, name: string, content: unknown): Promise<void> {
  const draft = path.join(dataDir, `${draftPrefix(name)}${randomUUID()}`);
  try {
    const handle = await open(draft, "wx", 0o600);
    try {
      await handle.writeFile(`${JSON.stringify(content)}\n`);
      await handle.sync();
    } finally {
      await handle.close();
    }
    await rename(draft, path.join(dataDir, name));
  } catch (error) {
    rmSync(draft, { force: true });
    throw error;
  }
}

function hasSignsOfUse(dataDir: string): boolean {
  return signsOfUse.some((name) => existsSync(path.join(dataDir, name)));
}

/** Whose a data directory is, as far as it can be read. Nothing is looked into. */
export function installationIn(dataDir: string): string | undefined {
  try {
    return readInstallation(dataDir)?.id;
  } catch {
    return undefined;
  }
}

/** What a directory's `installation.json` says it is. Nothing is looked into. */
export function directoryIn(dataDir: string): FileIdentity | undefined {
  try {
    return readInstallation(dataDir)?.directory;
  } catch {
    return undefined;
  }
}

/**
 * Whether a directory is the very one that its `installation.json` was written in, neither a copy nor without identity.
 * Nothing is looked into.
 */
export function isOriginal(dataDir: string): boolean {
  let written: InstallationFile | undefined;
  try {
    written = readInstallation(dataDir);
  } catch (error) {
    if (error instanceof ForeignDataDir) return false;
    throw error;
  }
  return written !== undefined && sameFile(written.directory, identifyFile(dataDir));
}

/** Whether there are folders of runtimes, whoever's. */
async function runtimesIn(dataDir: string): Promise<boolean> {
  for (const provider of await namesIn(path.join(dataDir, "runtimes"))) {
    const names = await namesIn(path.join(dataDir, "runtimes", provider));
    if (names.some((name) => !name.startsWith("."))) return true;
  }
  return false;
}

async function namesIn(folder: string): Promise<string[]> {
  try {
    return await readdir(folder);
  } catch (error) {
    if (error instanceof Error && "code" in error && (error.code === "ENOENT" || error.code === "ENOTDIR"))
      return [];
    throw error;
  }
}
