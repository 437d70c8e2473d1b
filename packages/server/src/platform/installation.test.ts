import { cp, mkdir, mkdtemp, readdir, readFile, rename, rm, stat, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import path from "node:path";
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import {
  ForeignDataDir,
  Installation,
  type InstallationSettings,
  renewInstallation,
} from "./installation.ts";

let home: string;
let dataDir: string;
beforeEach(async () => {
  home = await mkdtemp(path.join(tmpdir(), "alcove-installation-"));
  dataDir = path.join(home, "data");
  await mkdir(dataDir);
});
afterEach(() => rm(home, { recursive: true, force: true }));

/** A database's settings; a copy of it is made with `Object.assign`. */
class Settings implements InstallationSettings {
  values = new Map<string, string>();
  async instanceId(candidate: string): Promise<string> {
    const id = this.values.get("instance_id") ?? candidate;
    this.values.set("instance_id", id);
    return id;
  }
  async setting(name: string): Promise<string | undefined> {
    return this.values.get(name);
  }
  async changeSetting(name: string, value: string): Promise<void> {
    this.values.set(name, value);
  }
  copy(): Settings {
    return Object.assign(new Settings(), { values: new Map(this.values) });
  }
}

const open = (settings: Settings, directory = dataDir, newId = "new") =>
  Installation.open({ dataDir: directory, settings, newId });

/** A sandbox is made and its mark written. */
async function makeSandbox(settings: Settings): Promise<void> {
  const installation = await open(settings);
  await mkdir(path.join(dataDir, "runtimes", "native", "rt-1"), { recursive: true });
  await installation.advanced(() => undefined);
  await installation[Symbol.asyncDispose]();
}

describe("an installation", () => {
  it("is the same at every start, and after its directory was moved", async () => {
    const settings = new Settings();
    expect((await open(settings, dataDir, "first")).id).toBe("first");
    expect((await open(settings, dataDir, "second")).id).toBe("first");
    const moved = path.join(home, "moved");
    await rename(dataDir, moved);
    const again = await open(settings, moved, "third");
    expect([again.id, again.recovering]).toEqual(["first", false]);
  });

  it("whose database was lost recovers also where no record of a sandbox is kept here", async () => {
    const settings = new Settings();
    await makeSandbox(settings);
    await rm(path.join(dataDir, "runtimes"), { recursive: true });
    expect((await open(settings)).recovering).toBe(false);
    expect((await open(new Settings())).recovering).toBe(true);
  });

  it("keeps the key of what it signs when either its directory's mark or its database is lost", async () => {
    const settings = new Settings();
    const { noteKey } = await open(settings);
    expect(noteKey).toHaveLength(32);
    const mark = path.join(dataDir, "installation.json");
    expect((await stat(mark)).mode & 0o777).toBe(0o600);
    // As an earlier release leaves it.
    const { noteKey: _key, ...earlier } = JSON.parse(await readFile(mark, "utf8"));
    for (const left of [earlier, { ...earlier, noteKey: "" }, { ...earlier, noteKey: 7 }]) {
      await writeFile(mark, JSON.stringify(left));
      expect((await open(settings)).noteKey).toEqual(noteKey);
    }
    await mkdir(path.join(dataDir, "runtimes"));
    await rm(mark);
    expect((await open(settings)).noteKey).toEqual(noteKey);
    expect((await open(new Settings())).noteKey).toEqual(noteKey);
  });

  it("starts though the database cannot keep its key, says so, and keeps it before the next sandbox is answered", async () => {
    const settings = new Settings();
    await open(settings);
    const mark = path.join(dataDir, "installation.json");
    const { noteKey: _key, ...earlier } = JSON.parse(await readFile(mark, "utf8"));
    await writeFile(mark, JSON.stringify(earlier));
    settings.values.delete("note_key");
    const changeSetting = settings.changeSetting.bind(settings);
    settings.changeSetting = () => Promise.reject(new Error("disk full"));
    const database = path.join(home, "alcove.db");
    await writeFile(database, "");
    const unwritten: string[] = [];
    const installation = await Installation.open({
      dataDir,
      settings,
      newId: "new",
      database,
      onUnwritten: (what, error) => unwritten.push(`${what}: ${(error as Error).message}`),
    });
    expect(installation.noteKey).toHaveLength(32);
    expect(unwritten).toEqual([
      "whose the database is: disk full",
      "the key that signs labels, in the database: disk full",
    ]);
    settings.changeSetting = changeSetting;
    await installation.advanced((error) => expect.fail(String(error)));
    expect(settings.values.get("note_key")).toBe(Buffer.from(installation.noteKey).toString("hex"));
    expect(JSON.parse(settings.values.get("owner") ?? "")).toMatchObject({ directory: { path: dataDir } });
    await installation[Symbol.asyncDispose]();
  });

  it("starts though its directory is full and the database further than that says, and is marked once there is room", async () => {
    const settings = new Settings();
    await makeSandbox(settings);
    settings.values.set("generation", "2");
    const unwritable = path.join(dataDir, ".newest.json");
    await rm(unwritable);
    await mkdir(unwritable);
    const unwritten: string[] = [];
    const onUnwritten = (what: string) => unwritten.push(what);
    await using installation = await Installation.open({ dataDir, settings, newId: "new", onUnwritten });
    expect(installation.recovering).toBe(false);
    expect(unwritten).toEqual(["how far the installation is, in installation.json"]);
    await rm(unwritable, { recursive: true });
    await installation.advanced((error) => expect.fail(String(error)));
    const written = JSON.parse(await readFile(path.join(dataDir, "installation.json"), "utf8"));
    expect([written.generation, settings.values.get("generation")]).toEqual([3, "3"]);
  });

  it("removes what a process left that was killed while it wrote, and nothing else", async () => {
    const settings = new Settings();
    await open(settings);
    const uuid = "0b9ec2a6-6b0c-4d6c-9f0e-3a1c5b8d7e21";
    const before = (await readdir(dataDir)).sort();
    for (const name of [".newest.json", ".installation.json"])
      await writeFile(path.join(dataDir, `${name}.${uuid}`), '{"half');
    const others = [".installation.json.old", `.last-backup.json.${uuid}`];
    for (const name of others) await writeFile(path.join(dataDir, name), "");
    await open(settings);
    expect((await readdir(dataDir)).sort()).toEqual([...before, ...others].sort());
  });

  it("is refused in a copy of its directory until it is renewed", async () => {
    const settings = new Settings();
    await open(settings, dataDir, "original");
    const copy = path.join(home, "copy");
    await cp(dataDir, copy, { recursive: true, preserveTimestamps: true });
    const copied = settings.copy();
    await expect(open(copied, copy)).rejects.toThrow(ForeignDataDir);
    await expect(open(copied, copy)).rejects.toThrow(`is a copy of ${dataDir}`);
    await expect(open(copied, copy)).rejects.toThrow(`alcove restore --data-dir ${copy}`);
    await renewInstallation({ dataDir: copy, settings: copied, now: new Date(0), newId: "of its own" });
    const own = await open(copied, copy);
    expect(own.id).toBe("of its own");
    expect(own.noteKey).not.toEqual((await open(settings)).noteKey);
    expect((await open(settings)).id).toBe("original");
  });

  it("is refused when its database is put beside a new directory, or beside another's", async () => {
    const settings = new Settings();
    await open(settings, dataDir, "original");
    const fresh = path.join(home, "fresh");
    await mkdir(fresh);
    await expect(open(settings.copy(), fresh)).rejects.toThrow(
      "its database belongs to an installation elsewhere",
    );
    await open(new Settings(), fresh, "another");
    await expect(open(settings.copy(), fresh)).rejects.toThrow("belong to different installations");
  });

  it("is refused when its file cannot be read, and taken over from a release that wrote none", async () => {
    const settings = new Settings();
    await settings.instanceId("of an earlier release");
    await mkdir(path.join(dataDir, "agents"));
    expect((await open(settings)).id).toBe("of an earlier release");
    await writeFile(path.join(dataDir, "installation.json"), "{");
    await expect(open(settings)).rejects.toThrow(`remove ${path.join(dataDir, "installation.json")}`);
    await rm(path.join(dataDir, "installation.json"));
    expect((await open(settings)).id).toBe("of an earlier release");
  });

  it("recovers when its database was lost, under the identity its runtimes bear", async () => {
    await makeSandbox(new Settings());
    const id = JSON.parse(await readFile(path.join(dataDir, "installation.json"), "utf8")).id;
    const lost = new Settings();
    const first = await open(lost, dataDir, "unused");
    expect([first.id, first.recovering]).toEqual([id, true]);
    // A process that dies before it has recovered leaves it to the next one.
    const second = await open(lost);
    expect(second.recovering).toBe(true);
    await second.recovered();
    expect((await open(lost)).recovering).toBe(false);
  });

  it("knows up to which id a database that is gone may have given events, and nothing of it otherwise", async () => {
    const settings = new Settings();
    const given = async (of: Settings, then = async (_: Installation) => undefined as unknown) => {
      const installation = await open(of);
      await then(installation);
      await installation[Symbol.asyncDispose]();
      return installation.eventsGivenUpto;
    };
    expect(await given(settings, (it) => it.markEvents(100))).toBe(0);
    const older = settings.copy();
    expect(await given(settings, (it) => it.markEvents(200))).toBe(0);
    // A sandbox's mark takes nothing away.
    expect(await given(settings, (it) => it.advanced(() => undefined))).toBe(0);
    expect(await given(older.copy())).toBe(200);
    expect(await given(new Settings())).toBe(200);
    expect(await given(older, (it) => it.markEvents(300))).toBe(200);
    expect(await given(older)).toBe(0);
  });

  it("recovers when its database is older than the newest sandbox, and not otherwise", async () => {
    const settings = new Settings();
    await makeSandbox(settings);
    const backup = settings.copy();
    expect((await open(backup)).recovering).toBe(false);
    await makeSandbox(settings);
    expect((await open(settings)).recovering).toBe(false);
    expect((await open(backup)).recovering).toBe(true);
  });

  it("recovers from a database of before a process that died right after its first sandbox was answered", async () => {
    const settings = new Settings();
    const backup = settings.copy();
    await makeSandbox(settings);
    const stopped = settings.copy();
    const installation = await open(settings);
    await installation.advanced(() => undefined);
    expect((await open(stopped)).recovering).toBe(true);
    expect((await open(backup)).recovering).toBe(true);
    expect((await open(settings)).recovering).toBe(false);
  });

  it("recovers when its mark was lost, or when something is younger than its database, until it has recovered", async () => {
    const settings = new Settings();
    await makeSandbox(settings);
    await rm(path.join(dataDir, "installation.json"));
    const unmarked = await open(settings);
    expect([unmarked.recovering, unmarked.markLost, unmarked.databaseLost]).toEqual([true, true, false]);
    const again = await open(settings);
    expect([again.recovering, again.markLost]).toEqual([true, false]);
    await again.recovered();
    expect((await open(settings)).recovering).toBe(false);

    const newId = "unused";
    const asked: string[] = [];
    const outlived = async (id: string) => asked.push(id) > 0;
    const older = await Installation.open({ dataDir, settings, newId, outlived });
    expect([older.recovering, older.databaseLost, asked]).toEqual([true, true, ["new"]]);
    await older.recovered();
    const late = await open(settings);
    expect(late.recovering).toBe(false);
    await late.outlived();
    expect([late.recovering, (await open(settings)).recovering]).toEqual([true, true]);
  });

  it("takes spawns when it cannot be marked, and is marked with the next", async () => {
    const settings = new Settings();
    const installation = await open(settings);
    const before = settings.copy();
    const failures: unknown[] = [];
    const changeSetting = settings.changeSetting.bind(settings);
    settings.changeSetting = async () => {
      throw new Error("the disk is full");
    };
    await installation.advanced((error) => failures.push(error));
    expect(failures).toEqual([new Error("the disk is full")]);
    settings.changeSetting = changeSetting;
    await installation.advanced((error) => failures.push(error));
    expect(failures).toHaveLength(1);
    await mkdir(path.join(dataDir, "runtimes", "native", "rt-1"), { recursive: true });
    expect((await open(before)).recovering).toBe(true);
  });

  it("recovers when nothing but folders of runtimes is left", async () => {
    await mkdir(path.join(dataDir, "runtimes", "docker", "rt-1"), { recursive: true });
    expect((await open(new Settings())).recovering).toBe(true);
  });
});
