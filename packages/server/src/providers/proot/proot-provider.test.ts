import { execFileSync } from "node:child_process";
import { readdirSync, readFileSync } from "node:fs";
import {
  chmod,
  cp,
  mkdir,
  mkdtemp,
  readdir,
  rename,
  rm,
  rmdir,
  stat,
  symlink,
  writeFile,
} from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { describe, expect, it } from "vitest";
import { agentBinary } from "../../../test/support/agent-binary.ts";
import { requirement } from "../../../test/support/requirements.ts";
import { busyboxRootfs } from "../../../test/support/tiny-images.ts";
import { silentLogger } from "../../platform/logger.ts";
import { randomIds } from "../../platform/random-ids.ts";
import { chunks } from "../../ports/contract/provider/harness.ts";
import { providerContract } from "../../ports/contract/provider-contract.ts";
import {
  BadRequest,
  type ImageStore,
  NotFound,
  type RuntimeSpec,
  type StoredImage,
  Unavailable,
} from "../../ports/index.ts";
import { ProotProvider } from "./index.ts";

const needs = [await requirement("agent"), await requirement("proot"), await requirement("busybox")];
const skip = needs.find((need) => !need.ok)?.reason;
const asRoot = process.getuid?.() === 0;
const tiny = "tiny:latest";
const options = () => ({ signal: AbortSignal.timeout(20_000) });

class OneImage implements ImageStore {
  /** The tree; unset: the usual one. */
  rootfs: string | undefined;

  async resolve(name: string): Promise<StoredImage> {
    if (name !== tiny) throw new NotFound(`image "${name}" is not stored; alcove image import gets it`);
    const rootfs = this.rootfs ?? (await busyboxRootfs()).dir;
    return {
      name,
      digest: "0",
      rootfs,
      sizeBytes: 0,
      createdAt: new Date(0),
      config: { env: { FROM: "image" } },
    };
  }
  async list(): Promise<StoredImage[]> {
    return [await this.resolve(tiny)];
  }
}

async function open(): Promise<{
  dataDir: string;
  images: OneImage;
  make: (instanceId?: string) => ProotProvider;
  close: () => Promise<void>;
}> {
  const folder = await mkdtemp(join(tmpdir(), "alcove-proot-"));
  await chmod(folder, 0o711);
  const dataDir = join(folder, "data");
  await mkdir(dataDir);
  const images = new OneImage();
  const make = (instanceId = "test-instance") =>
    new ProotProvider({
      config: { defaultImage: tiny, prootBinary: "proot" },
      dataDir,
      instanceId,
      agentBinary: agentBinary("alcove-agent"),
      images,
      logger: silentLogger,
    });
  return { dataDir, images, make, close: () => rm(folder, { recursive: true }) };
}

function specOf(change: Partial<RuntimeSpec> = {}): RuntimeSpec {
  return {
    runtimeId: randomIds.runtimeId(),
    sandboxId: randomIds.sandboxId(),
    image: tiny,
    memoryMb: 128,
    vcpus: 1,
    env: {},
    expiresInMs: 60_000,
    metadata: {},
    ...change,
  };
}

const subjects = asRoot
  ? ([["proot", tiny]] as const)
  : ([
      ["proot, unprivileged", tiny],
      ["proot, unprivileged, image host", "host"],
    ] as const);
for (const [title, image] of subjects) {
  providerContract(title, {
    ...(skip === undefined ? {} : { skip }),
    create: async () => {
      const { make, close } = await open();
      return {
        provider: make(),
        image,
        close,
        restart: async () => make(),
      };
    },
  });
}

describe.skipIf(skip !== undefined)(`ProotProvider${skip === undefined ? "" : ` (skipped: ${skip})`}`, () => {
  async function output(provider: ProotProvider, spec: RuntimeSpec, argv: string[]): Promise<string> {
    const { execs } = provider.sandbox(spec.runtimeId);
    await using view = await execs.start(
      {
        execId: randomIds.execId(),
        command: argv.join(" "),
        args: [],
        argv,
        env: {},
        stdin: false,
        timeoutMs: 10_000,
        detached: false,
        ...(spec.user === undefined ? {} : { user: spec.user }),
      },
      options(),
    );
    let text = "";
    for await (const event of view.events) if (event.type === "output") text += event.data.toString();
    return text;
  }

  it("calls that proot does not translate do not reach the host", async () => {
    const { dataDir, make, close } = await open();
    await using provider = make();
    const spec = specOf();
    await provider.spawn(spec, options());
    const bait = join(dataDir, "bait");
    await writeFile(bait, "host");
    await chmod(bait, 0o600);
    const probe = join(dataDir, "runtimes/proot", spec.runtimeId, "rootfs/probe");
    execFileSync("cc", ["-static", "-x", "c", "-o", probe, "-"], { input: probeSource });
    const said = await output(provider, spec, ["/probe", bait]);
    expect(said).toBe("statx ENOSYS\nopenat2 ENOSYS\nfaccessat2 ENOSYS\nfchmodat2 ENOSYS\nopen ENOENT\n");
    expect((await stat(bait)).mode & 0o777).toBe(0o600);
    await provider.destroy(spec.runtimeId, options());
    await close();
  });

  it("an image whose /dev, /tmp and /run are links gets folders there, and nothing happens where they lead", async () => {
    const { dataDir, images, make, close } = await open();
    await using provider = make();
    const outside = join(dataDir, "../outside");
    await mkdir(outside, { mode: 0o700 });
    images.rootfs = join(dataDir, "../image");
    await cp((await busyboxRootfs()).dir, images.rootfs, { recursive: true, verbatimSymlinks: true });
    for (const [name, target] of [
      ["dev", outside],
      ["run", "../../../../../outside"],
      ["tmp", join(outside, "tmp")],
      ["sys", "/nowhere"],
    ] as const) {
      await rm(join(images.rootfs, name), { recursive: true });
      await symlink(target, join(images.rootfs, name));
    }
    const specs = [specOf(), specOf()];
    await Promise.all(specs.map((spec) => provider.spawn(spec, options())));
    expect(await readdir(outside)).toEqual([]);
    expect((await stat(outside)).mode & 0o7777).toBe(0o700);
    const look = ["sh", "-c", "echo x > /dev/shm/x && echo x > /tmp/x && ls -ld /dev/shm | cut -c1-10"];
    for (const spec of specs) expect(await output(provider, spec, look)).toBe("drwxrwxrwt\n");
    expect(await readdir(outside)).toEqual([]);
    for (const spec of specs) await provider.destroy(spec.runtimeId, options());
    await close();
  });

  it("a sandbox's folder is closed to the machine's other users", async () => {
    const { dataDir, make, close } = await open();
    await chmod(dataDir, 0o711);
    await using provider = make();
    const spec = specOf();
    await provider.spawn(spec, options());
    const folder = join(dataDir, "runtimes/proot", spec.runtimeId);
    expect(((await stat(folder)).mode & 0o007).toString(8)).toBe("0");
    if (asRoot) {
      expect(() =>
        execFileSync("cat", [join(folder, "rootfs/etc/hostname")], {
          stdio: "ignore",
          uid: 1000,
          gid: 1000,
        }),
      ).toThrow();
      // Its own users get there all the same, with the group they have for that.
      expect(await output(provider, { ...spec, user: "app" }, ["sh", "-c", "cat /etc/hostname; id -u"])).toBe(
        "tiny\n1000\n",
      );
    }
    await provider.destroy(spec.runtimeId, options());
    await close();
  });

  it.runIf(asRoot)(
    "a user of a sandbox has /workspace, and over files that user's rights alone",
    async () => {
      const { dataDir, make, close } = await open();
      await chmod(dataDir, 0o711);
      await using provider = make();
      const spec = specOf();
      await provider.spawn(spec, options());
      const { files } = provider.sandbox(spec.runtimeId);
      const app = { ...spec, user: "app" };
      expect(await output(provider, app, ["sh", "-c", "echo mine > kept; cat kept"])).toBe("mine\n");
      await output(provider, spec, ["sh", "-c", "mkdir -m 700 /closed; echo of root > /closed/kept"]);
      for (const path of ["/closed/kept", "/closed/new", "/new"])
        await expect(files.write(path, chunks("x"), { ...options(), user: "app" })).rejects.toThrow(
          BadRequest,
        );
      await files.write("/workspace/kept", chunks("of the user's\n"), { ...options(), user: "app" });
      // Nothing of it is left when the agent acts for itself again.
      await files.write("/closed/new", chunks("of root\n"), options());
      expect(await output(provider, spec, ["sh", "-c", "cat /workspace/kept /closed/*"])).toBe(
        "of the user's\nof root\nof root\n",
      );
      await provider.destroy(spec.runtimeId, options());
      await close();
    },
  );

  it("stats() count the sandbox's own processes, not the host's, and no disk", async () => {
    const { make, close } = await open();
    await using provider = make();
    const spec = specOf();
    await provider.spawn(spec, options());
    const stats = await provider.sandbox(spec.runtimeId).stats(options());
    expect(Object.keys(stats).sort()).toEqual(["cpuUsageMs", "memoryBytes", "pids"]);
    // The tracer and the agent, with their threads; this test alone has more.
    expect(stats.pids).toBeGreaterThanOrEqual(2);
    expect(stats.pids).toBeLessThanOrEqual(8);
    expect(stats.memoryBytes).toBeLessThan(64 * 1024 * 1024);
    await provider.destroy(spec.runtimeId, options());
    await close();
  });

  it("concludes nothing while its folders are out of sight", async () => {
    const { dataDir, make, close } = await open();
    await using provider = make();
    const spec = specOf();
    await provider.spawn(spec, options());
    const { runtimeId } = spec;
    await rename(dataDir, `${dataDir}-away`);
    await expect(provider.inventory(options())).rejects.toThrow(Unavailable);
    await expect(provider.spawn(specOf(), options())).rejects.toThrow(/bring the directory back/);
    await expect(rmdir(dataDir)).rejects.toThrow("ENOENT");
    await rename(`${dataDir}-away`, dataDir);
    expect(await provider.inventory(options())).toMatchObject([{ runtimeId, state: "running" }]);
    expect(await output(provider, spec, ["/bin/echo", "works"])).toBe("works\n");
    await provider.destroy(runtimeId, options());
    await close();
  });

  it("destroy() leaves no process of the sandbox on the machine", async () => {
    const { make, close } = await open();
    await using provider = make();
    const spec = specOf();
    await provider.spawn(spec, options());
    const marker = `77${process.pid}`;
    const script = `(setsid sleep ${marker} >/dev/null 2>&1 &); trap "" TERM; sleep ${marker} & echo up; wait`;
    const { execs } = provider.sandbox(spec.runtimeId);
    const view = await execs.start(
      {
        execId: randomIds.execId(),
        command: script,
        args: [],
        argv: ["sh", "-c", script],
        env: {},
        stdin: false,
        timeoutMs: 60_000,
        detached: false,
      },
      options(),
    );
    for await (const event of view.events) if (event.type === "output") break;
    await expect.poll(() => commandLines(`sleep\0${marker}\0`)).toBe(2);
    await provider.destroy(spec.runtimeId, options());
    expect(commandLines(`sleep\0${marker}\0`)).toBe(0);
    await close();
  });

  it("a runtime whose record names no process yet is found by its root and ended", async () => {
    const { dataDir, make, close } = await open();
    const spec = specOf();
    await using provider = make();
    await provider.spawn(spec, options());
    const recordPath = join(dataDir, "runtimes/proot", spec.runtimeId, "runtime.json");
    const record = JSON.parse(readFileSync(recordPath, "utf8"));
    delete record.process;
    await writeFile(recordPath, JSON.stringify(record));
    await using later = make();
    expect(await later.inventory(options())).toEqual([
      expect.objectContaining({ runtimeId: spec.runtimeId, sandboxId: spec.sandboxId, state: "dead" }),
    ]);
    const root = join(dataDir, "runtimes/proot", spec.runtimeId, "rootfs");
    expect(commandLines(`\0${root}\0`)).toBeGreaterThan(0);
    await later.destroy(spec.runtimeId, options());
    expect(commandLines(`\0${root}\0`)).toBe(0);
    await close();
  });

  it("the runtimes of another instance are not listed, and none of their processes is ended", async () => {
    const { make, close } = await open();
    await using provider = make();
    const spec = specOf();
    await provider.spawn(spec, options());
    await using other = make("another-instance");
    expect(await other.inventory(options())).toEqual([]);
    await other.destroy(spec.runtimeId, options());
    expect(await output(provider, spec, ["sh", "-c", "echo alive"])).toBe("alive\n");
    await provider.destroy(spec.runtimeId, options());
    await close();
  });

  it("a data_dir with a long path works", async () => {
    const { dataDir, close } = await open();
    const long = join(dataDir, "x".repeat(100), "y".repeat(100));
    await mkdir(long, { recursive: true });
    await using provider = new ProotProvider({
      config: { defaultImage: tiny, prootBinary: "proot" },
      dataDir: long,
      instanceId: "test-instance",
      agentBinary: agentBinary("alcove-agent"),
      images: new OneImage(),
      logger: silentLogger,
    });
    const spec = specOf();
    await provider.spawn(spec, options());
    expect(await output(provider, spec, ["sh", "-c", "echo $FROM"])).toBe("image\n");
    await provider.destroy(spec.runtimeId, options());
    await close();
  });

  it.runIf(asRoot)("image host is refused to a service that runs as root", async () => {
    const { make, close } = await open();
    await using provider = make();
    await expect(provider.spawn(specOf({ image: "host" }), options())).rejects.toThrow(BadRequest);
    expect(await provider.inventory(options())).toEqual([]);
    await close();
  });

  it("check() says what is missing", async () => {
    const { dataDir, close } = await open();
    await using provider = new ProotProvider({
      config: { defaultImage: tiny, prootBinary: "/no/such/proot" },
      dataDir,
      instanceId: "test-instance",
      agentBinary: agentBinary("alcove-agent"),
      images: new OneImage(),
      logger: silentLogger,
    });
    const check = await provider.check(options());
    expect(check.healthy).toBe(false);
    expect(check.error).toContain("proot_binary");
    await close();
  });
});

/** How many processes of the machine have `part` in their command line. */
function commandLines(part: string): number {
  return readdirSync("/proc").filter((pid) => {
    if (!/^\d+$/.test(pid)) return false;
    try {
      return readFileSync(`/proc/${pid}/cmdline`, "utf8").includes(part);
    } catch (error) {
      if (error instanceof Error && "code" in error) return false;
      throw error;
    }
  }).length;
}

const probeSource = `
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>
static void tell(const char *name, long result) {
  printf("%s %s\\n", name, result >= 0 ? "worked" : errno == ENOSYS ? "ENOSYS" : errno == ENOENT ? "ENOENT" : "?");
}
int main(int count, char **words) {
  const char *path = words[count - 1];
  struct statx found;
  unsigned long long how[3] = {O_RDONLY, 0, 0};
  tell("statx", syscall(SYS_statx, AT_FDCWD, path, 0, STATX_BASIC_STATS, &found));
  tell("openat2", syscall(437, AT_FDCWD, path, how, sizeof how));
  tell("faccessat2", syscall(439, AT_FDCWD, path, R_OK, 0));
  tell("fchmodat2", syscall(452, AT_FDCWD, path, 0777, 0));
  tell("open", open(path, O_RDONLY));
  return 0;
}
`;
