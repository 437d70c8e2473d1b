import { realpathSync } from "node:fs";
import path from "node:path";
import { type FileIdentity, identifyFile, isFileIdentity, isStillThere, sameFile } from "./file-identity.ts";

/** Setting: the data directory a database belongs to, and which file it was then, so that a copy of it is nobody's. */
const ownerSetting = "owner";

interface Owner {
  directory: FileIdentity;
  file: FileIdentity;
}

interface Settings {
  setting(name: string): Promise<string | undefined>;
  changeSetting(name: string, value: string): Promise<void>;
}

/** A database that another data directory has, or may have. */
export interface ForeignDatabase {
  file: string;
  /** Undefined where nothing says it. */
  directory: string | undefined;
}

/**
 * Whether a database is somebody else's. One in the data directory never is: it was copied with it.
 * @param options.written what the directory's `installation.json` says it is, where there is one.
 */
export async function foreignDatabase(options: {
  dataDir: string;
  file: string;
  settings: Settings;
  written: FileIdentity | undefined;
}): Promise<ForeignDatabase | undefined> {
  const { dataDir, file, settings, written } = options;
  if (isBelow(file, dataDir) || (await settings.setting("instance_id")) === undefined) return undefined;
  const here = identifyFile(dataDir);
  const owner = await ownerOf(settings);
  if (owner !== undefined) {
    const free = sameFile(owner.directory, here) || !sameFile(owner.file, identifyFile(file));
    return free ? undefined : { file, directory: owner.directory.path };
  }
  // From an earlier release, or never started since.
  if (written === undefined) return { file, directory: undefined };
  const isTheirs = !sameFile(written, here) && isStillThere(written);
  return isTheirs ? { file, directory: written.path } : undefined;
}

/** The directory that a database was opened in last. */
export async function ownerOf(settings: Pick<Settings, "setting">): Promise<Owner | undefined> {
  const text = await settings.setting(ownerSetting);
  if (text === undefined) return undefined;
  try {
    const { directory, file } = (JSON.parse(text) ?? {}) as Partial<Owner>;
    return isFileIdentity(directory) && isFileIdentity(file) ? { directory, file } : undefined;
  } catch {
    return undefined;
  }
}

export async function takeDatabase(options: {
  dataDir: string;
  file: string;
  settings: Settings;
}): Promise<void> {
  const { dataDir, file, settings } = options;
  const owner = JSON.stringify({
    directory: identifyFile(dataDir),
    file: identifyFile(file),
  } satisfies Owner);
  if ((await settings.setting(ownerSetting)) !== owner) await settings.changeSetting(ownerSetting, owner);
}

/** Whether a file lies in a directory, wherever links lead. */
export function isBelow(file: string, directory: string): boolean {
  const way = path.relative(realpathSync(directory), realDatabase(file));
  return way !== ".." && !way.startsWith(`..${path.sep}`) && !path.isAbsolute(way);
}

/** The file a database's name stands for, which need not be there. */
export function realDatabase(file: string): string {
  try {
    return realpathSync(file);
  } catch (error) {
    if (!(error instanceof Error && "code" in error && error.code === "ENOENT")) throw error;
    return path.join(realpathSync(path.dirname(file)), path.basename(file));
  }
}

/** What to do with a directory whose database is another's. */
export function databaseOfItsOwn(foreign: ForeignDatabase, dataDir: string, command: string): string {
  const { file, directory = "another data directory" } = foreign;
  return (
    `The database ${file} belongs to ${directory} and stays with it. With one of its own, new or a copy that "alcove backup" ` +
    `made, this directory goes on: alcove ${command} --data-dir ${dataDir} --set database.path=${path.join(dataDir, "alcove.db")}`
  );
}
