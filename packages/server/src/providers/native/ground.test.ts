import { mkdtemp, open, readFile, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, expect, it, vi } from "vitest";
import { silentLogger } from "../../platform/logger.ts";
import { openDiskPool } from "./disk-template.ts";
import { surveyGround } from "./ground.ts";

vi.mock("./cgroups.ts", () => ({ Cgroups: { open: async () => ({ missing: "none here" }) } }));
vi.mock("node:fs/promises", async (original) => {
  const real = await original<typeof import("node:fs/promises")>();
  const access: typeof real.access = async (path, mode) => {
    if (path !== "/dev/loop-control") await real.access(path, mode);
  };
  return { ...real, access, open: vi.fn(real.open), readFile: vi.fn(real.readFile) };
});

const lacking = () => Object.assign(new Error("too many open files"), { code: "EMFILE" });
let dataDir: string;

beforeEach(async () => {
  dataDir = await mkdtemp(join(tmpdir(), "alcove-ground-"));
});
afterEach(async () => {
  vi.restoreAllMocks();
  await rm(dataDir, { recursive: true, force: true });
});

it("a template that could not be made for want of a descriptor is not one that there cannot be", async () => {
  const options = { dataDir, diskMb: 16, mkfs: "/bin/true" };
  vi.mocked(open).mockRejectedValueOnce(lacking());
  await expect(openDiskPool(options)).rejects.toThrow("too many open files");
  expect(await openDiskPool(options)).toHaveProperty("template");
});

it("ids that could not be looked up for want of a descriptor are looked up again", async () => {
  vi.spyOn(process, "getuid").mockReturnValue(1_000);
  let fails = true;
  const { readFile: real } = await vi.importActual<typeof import("node:fs/promises")>("node:fs/promises");
  vi.mocked(readFile).mockImplementation(async (path, options) => {
    if (path !== "/etc/subuid" && path !== "/etc/subgid") return real(path, options);
    if (fails) throw lacking();
    return "1000:100000:65536\n";
  });
  const survey = () =>
    surveyGround({
      dataDir,
      instance: "test",
      diskMb: 0,
      minFreeMb: 0,
      findProgram: async (name) => `/usr/bin/${name}`,
      logger: silentLogger,
    });
  await expect(survey()).rejects.toThrow("too many open files");
  fails = false;
  expect((await survey()).unprivilegedIds).toMatchObject({ kind: "subids", uid_start: 100_000 });
});

it.each([
  ["root says that it found no control groups", 0, 1],
  ["another user, who has none as a rule, says nothing of it", 1_000, 0],
])("a service of %s", async (_, uid, times) => {
  vi.spyOn(process, "getuid").mockReturnValue(uid);
  const warn = vi.spyOn(silentLogger, "warn");
  const given = { instance: "test", diskMb: 0, minFreeMb: 0, findProgram: async () => undefined };
  await surveyGround({ dataDir, ...given, logger: silentLogger });
  const told = warn.mock.calls.filter((words) => JSON.stringify(words).includes("no control groups"));
  expect(told).toHaveLength(times);
});
