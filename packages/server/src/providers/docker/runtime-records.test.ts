import { chown, mkdtemp, rm, stat, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import { BadRequest, ProviderError, type RuntimeId } from "../../ports/index.ts";
import { type RuntimeRecord, RuntimeRecords } from "./runtime-records.ts";

const id = "rt-1" as RuntimeId;
const record: RuntimeRecord = {
  version: 1,
  instanceId: "one",
  runtimeId: id,
  sandboxId: "sb-1",
  token: "secret",
  image: "alpine:latest",
  transport: "socket",
  createdAt: "2026-01-01T00:00:00.000Z",
};

describe("RuntimeRecords", () => {
  let dataDir: string;
  let records: RuntimeRecords;
  beforeEach(async () => {
    dataDir = await mkdtemp(join(tmpdir(), "alcove-records-"));
    records = new RuntimeRecords({ dataDir });
  });
  afterEach(() => rm(dataDir, { recursive: true, force: true }));

  it("keeps a record for nobody but the service's user, and forgets it", async () => {
    expect(await records.list()).toEqual([]);
    await records.save(record, id);
    await records.save({ ...record, socket: { device: "1", inode: "2" } }, id);
    expect(await records.list()).toEqual([id]);
    expect(await records.read(id)).toEqual({ ...record, socket: { device: "1", inode: "2" } });
    expect((await stat(join(records.folder(id), "runtime.json"))).mode & 0o777).toBe(0o600);
    await records.remove(id);
    await records.remove(id);
    expect(await records.read(id)).toBeUndefined();
    expect(await records.list()).toEqual([]);
  });

  it("tells a record of another release from one that is not there", async () => {
    await records.save({ ...record, version: 2 } as never, id);
    await expect(records.read(id)).rejects.toThrow(/cannot be read by this release: its version is 2/);
    expect(await records.readIfWhole(id)).toBeUndefined();
    expect(await records.read("rt-2")).toBeUndefined();
  });

  it("makes a socket folder that only its owner enters", async () => {
    const folder = await records.makeSocketFolder(id);
    expect((await stat(folder)).mode & 0o777).toBe(0o700);
  });

  it.skipIf(process.getuid?.() !== 0)("names the right that a service which is root may lack", async () => {
    const stranger = 12_345;
    const asIfWithoutRights = async (act: () => Promise<unknown>) => {
      process.seteuid?.(65_534);
      try {
        return await act();
      } finally {
        process.seteuid?.(0);
      }
    };
    await chown(dataDir, 65_534, 65_534);
    const made = asIfWithoutRights(() => records.makeSocketFolder(id));
    await expect(made).rejects.toThrow(
      /^the folder of the agent's socket cannot be given to user \d+ \(EPERM\): .* the right CHOWN .*docs\/operations\/container\.md/,
    );
    await made.catch((error) => expect(error).toBeInstanceOf(ProviderError));
    await writeFile(join(records.socketFolder(id), "agent.sock"), "");
    await chown(records.socketFolder(id), stranger, stranger);
    await expect(asIfWithoutRights(() => records.remove(id))).rejects.toThrow(
      /^the folder of runtime rt-1 cannot be removed \(EACCES\): .* the right DAC_OVERRIDE/,
    );
  });

  it("refuses ids that would leave its folder", () => {
    for (const bad of ["..", "../x", "a/b", "", ".hidden", "-x"]) {
      expect(() => records.folder(bad as RuntimeId), bad).toThrow(BadRequest);
    }
  });
});
