import { randomUUID } from "node:crypto";
import { createReadStream, existsSync } from "node:fs";
import { chmod, chown, copyFile, mkdir, rename, rm, symlink, writeFile } from "node:fs/promises";
import { request } from "node:http";
import { dirname } from "node:path";
import { projectRoot } from "./agent-binary.ts";
import type { TestEngine } from "./docker-engine.ts";
import { findProgram, mustRun } from "./programs.ts";

/** A root file system as a folder and as a tar of it. */
export interface TestRootfs {
  dir: string;
  tar: string;
}

const cacheDir = `${projectRoot}/.cache/test-images`;
/** Raised when what is built below changes. */
const revision = 1;

/** busybox with every applet linked, root and a user `app` (uid 1000), a world-writable /tmp. About 2 MB. */
export function busyboxRootfs(): Promise<TestRootfs> {
  return cached(`busybox-${revision}`, async (dir) => {
    const busybox = findProgram("busybox");
    if (busybox === undefined) throw new Error("busybox is missing (Debian package busybox-static)");
    for (const folder of [
      "bin",
      "sbin",
      "usr/bin",
      "usr/sbin",
      "etc",
      "root",
      "home/app",
      "proc",
      "sys",
      "dev",
      "run",
      "var",
    ]) {
      await mkdir(`${dir}/${folder}`, { recursive: true });
    }
    await copyFile(busybox, `${dir}/bin/busybox`);
    await chmod(`${dir}/bin/busybox`, 0o755);
    const { stdout } = await mustRun(busybox, ["--list-full"]);
    for (const applet of stdout
      .trim()
      .split("\n")
      .filter((path) => path !== "bin/busybox")) {
      await mkdir(dirname(`${dir}/${applet}`), { recursive: true });
      await symlink("/bin/busybox", `${dir}/${applet}`);
    }
    await mkdir(`${dir}/tmp`);
    await chmod(`${dir}/tmp`, 0o1777);
    await writeFile(
      `${dir}/etc/passwd`,
      "root:x:0:0:root:/root:/bin/sh\napp:x:1000:1000:app:/home/app:/bin/sh\n",
    );
    await writeFile(`${dir}/etc/group`, "root:x:0:\napp:x:1000:\n");
    await writeFile(`${dir}/etc/hostname`, "tiny\n");
    if (process.getuid?.() === 0) await chown(`${dir}/home/app`, 1000, 1000);
  });
}

/** Debian with bash and python3, by debootstrap: about 40 s the first time, then kept. Needs root. */
export function debianRootfs(): Promise<TestRootfs> {
  return cached(`debian-${revision}`, async (dir) => {
    await mustRun("debootstrap", ["--variant=minbase", "--include=python3-minimal", "bookworm", dir], {
      timeoutMs: 300_000,
    });
    await rm(`${dir}/var/cache/apt`, { recursive: true, force: true });
    await rm(`${dir}/var/lib/apt/lists`, { recursive: true, force: true });
  });
}

/** Loads a root file system into an engine as an image, with `changes` such as `ENV A=b` or `USER app`. */
export function importImage(
  engine: TestEngine,
  tar: string,
  name: string,
  changes: readonly string[] = [],
): Promise<void> {
  const [repo, tag = "latest"] = name.split(":");
  const query = new URLSearchParams({ fromSrc: "-", repo: repo ?? name, tag });
  for (const change of changes) query.append("changes", change);
  return new Promise((resolve, reject) => {
    const upload = request(
      { socketPath: engine.socketPath, method: "POST", path: `/v1.41/images/create?${query}` },
      (response) => {
        let body = "";
        response.setEncoding("utf8").on("data", (text: string) => {
          body += text;
        });
        response.on("end", () =>
          response.statusCode === 200 && !body.includes('"error"')
            ? resolve()
            : reject(new Error(`importing ${name}: ${response.statusCode} ${body}`)),
        );
      },
    );
    upload.on("error", reject);
    createReadStream(tar).on("error", reject).pipe(upload);
  });
}

/** The name under which `importBusybox` stores the tiny image. */
export const busyboxImage = "alcove-test/busybox:latest";

/**
 * Loads the tiny image. Importing it again is harmless, but to who minds that it is another image then, by its id.
 * @param name one of the caller's own, which nobody imports again.
 */
export async function importBusybox(engine: TestEngine, name = busyboxImage): Promise<string> {
  const { tar } = await busyboxRootfs();
  await importImage(engine, tar, name);
  return name;
}

/** Builds into a folder of its own and renames: whoever is first wins, nobody sees half of it. */
async function cached(name: string, build: (dir: string) => Promise<void>): Promise<TestRootfs> {
  const final = `${cacheDir}/${name}`;
  const rootfs = { dir: `${final}/rootfs`, tar: `${final}/rootfs.tar` };
  if (existsSync(final)) return rootfs;
  const making = `${cacheDir}/.making-${randomUUID()}`;
  await mkdir(`${making}/rootfs`, { recursive: true });
  try {
    await build(`${making}/rootfs`);
    await mustRun(
      "tar",
      ["--numeric-owner", "--one-file-system", "-C", `${making}/rootfs`, "-cf", `${making}/rootfs.tar`, "."],
      {
        timeoutMs: 120_000,
      },
    );
    await rename(making, final);
  } catch (error) {
    await rm(making, { recursive: true, force: true });
    if (!existsSync(final)) throw error;
  }
  return rootfs;
}
