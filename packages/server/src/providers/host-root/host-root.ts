import { createHash } from "node:crypto";
import {
  chmod,
  mkdir,
  mkdtemp,
  readdir,
  readFile,
  readlink,
  realpath,
  rename,
  rm,
  stat,
  symlink,
  writeFile,
} from "node:fs/promises";
import { dirname, join } from "node:path";

/** A file, link or directory of the made-up root. */
type Entry = { path: string } & (
  | { kind: "dir"; mode: number }
  | { kind: "file"; contents: Buffer }
  | { kind: "link"; target: string }
);

/** Links to /usr on most machines; elsewhere directories, which the launcher then shows as they are. */
const programDirs = ["bin", "sbin", "lib", "lib32", "lib64", "libx32"];
const directories: readonly (readonly [string, number])[] = [
  ...[
    "usr",
    "proc",
    "dev",
    "sys",
    "run",
    "etc",
    "home",
    "opt",
    "srv",
    "mnt",
    "media",
    "var",
    "nix/store",
  ].map((path) => [path, 0o755] as const),
  ...["var/cache", "var/lib", "var/log", "var/spool", "etc/ssl", "etc/ssl/certs"].map(
    (path) => [path, 0o755] as const,
  ),
  ["root", 0o700],
  // Every user of a sandbox works here.
  ["workspace", 0o1777],
  ["tmp", 0o1777],
  ["var/tmp", 0o1777],
];
/** What programs below /usr need of the machine's /etc and everybody may read anyway. */
const shownFiles = [
  "ld.so.cache",
  "ld.so.conf",
  "mime.types",
  "protocols",
  "services",
  "localtime",
  "os-release",
];
const shownLinkDirs = ["alternatives"];
const shownTextDirs = ["ld.so.conf.d"];
const madeUp: Readonly<Record<string, string>> = {
  passwd:
    "root:x:0:0:root:/root:/bin/sh\ndaemon:x:1:1:daemon:/usr/sbin:/usr/sbin/nologin\n" +
    "user:x:1000:1000:user:/workspace:/bin/sh\nnobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n",
  group: "root:x:0:\ndaemon:x:1:\ntty:x:5:\nstaff:x:50:\nuser:x:1000:\nnogroup:x:65534:\n",
  "resolv.conf": "",
  "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\nservices: files\nprotocols: files\n",
  profile: "export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin\n",
};
/** What differs from sandbox to sandbox: the kernel tells the name, and the agent writes the file, in memory. */
const ownLinks: Readonly<Record<string, string>> = {
  hostname: "/proc/sys/kernel/hostname",
  hosts: "/dev/hosts",
  mtab: "/proc/self/mounts",
};
const largestShownFile = 4 << 20;

/**
 * Makes the read-only root below image `host`: links to the machine's programs, mount points, and a small /etc that is
 * made up, but for what the dynamic linker, alternatives, time zone and public certificates need.
 * @returns its path, `<dataDir>/native/host-<digest>`; the same contents give the same path.
 */
export async function makeHostRoot(dataDir: string): Promise<string> {
  const { entries, target } = await placeOf(dataDir);
  const folder = dirname(target);
  await mkdir(folder, { recursive: true, mode: 0o755 });
  // In it are folders that anybody can write to, and what is in those is in every sandbox: the machine's other users stay
  // outside. A service that is not root starts sandboxes under ids of its own, which have to pass.
  if (process.getuid?.() === 0) await chmod(folder, 0o700);
  if ((await maybe(() => stat(target))) !== undefined) return target;
  const draft = await mkdtemp(join(folder, ".host-"));
  try {
    await chmod(draft, 0o755);
    for (const entry of entries) await write(draft, entry);
    await rename(draft, target);
  } catch (error) {
    await rm(draft, { recursive: true, force: true });
    // Somebody else was first with the same contents.
    if ((await maybe(() => stat(target))) === undefined) throw error;
  }
  return target;
}

/** Where `makeHostRoot` makes it, whether or not it is there. */
export async function hostRootPath(dataDir: string): Promise<string> {
  return (await placeOf(dataDir)).target;
}

async function placeOf(dataDir: string): Promise<{ entries: readonly Entry[]; target: string }> {
  const entries = await collect();
  const digest = createHash("sha256");
  for (const entry of entries) {
    digest.update(JSON.stringify(entry.kind === "file" ? { ...entry, contents: undefined } : entry));
    if (entry.kind === "file") digest.update(entry.contents);
  }
  return { entries, target: join(dataDir, "native", `host-${digest.digest("hex").slice(0, 16)}`) };
}

async function write(root: string, entry: Entry): Promise<void> {
  const path = join(root, entry.path);
  if (entry.path.includes("/")) {
    await mkdir(dirname(path), { recursive: true });
    // mkdir obeys the umask.
    if (entry.kind !== "dir") await chmod(dirname(path), 0o755);
  }
  switch (entry.kind) {
    case "dir":
      await mkdir(path, { recursive: true });
      return chmod(path, entry.mode);
    case "link":
      return symlink(entry.target, path);
    case "file":
      await writeFile(path, entry.contents);
      return chmod(path, 0o644);
    default:
      return entry satisfies never;
  }
}

async function collect(): Promise<Entry[]> {
  const entries: Entry[] = directories.map(([path, mode]) => ({ kind: "dir", path, mode }));
  for (const name of programDirs) {
    const target = await maybe(() => readlink(`/${name}`));
    if (target !== undefined) entries.push({ kind: "link", path: name, target });
    else if ((await maybe(() => stat(`/${name}`))) !== undefined)
      entries.push({ kind: "dir", path: name, mode: 0o755 });
  }
  for (const [name, text] of Object.entries(madeUp))
    entries.push({ kind: "file", path: `etc/${name}`, contents: Buffer.from(text) });
  for (const [name, target] of Object.entries(ownLinks))
    entries.push({ kind: "link", path: `etc/${name}`, target });
  for (const name of shownFiles) await showFile(entries, name);
  for (const folder of shownTextDirs)
    for (const name of await names(`/etc/${folder}`)) await showFile(entries, `${folder}/${name}`);
  for (const folder of shownLinkDirs)
    for (const name of await names(`/etc/${folder}`)) await showLink(entries, `${folder}/${name}`);
  await showCertificates(entries);
  return entries;
}

async function showFile(entries: Entry[], name: string): Promise<void> {
  const contents = await publicContents(`/etc/${name}`);
  if (contents !== undefined) entries.push({ kind: "file", path: `etc/${name}`, contents });
}

/** Links of /etc that lead to /usr, such as /etc/alternatives/awk. */
async function showLink(entries: Entry[], name: string): Promise<void> {
  const target = await maybe(() => readlink(`/etc/${name}`));
  if (target?.startsWith("/usr/")) entries.push({ kind: "link", path: `etc/${name}`, target });
}

/** Public certificates only: a key somebody left among them stays where it is. */
async function showCertificates(entries: Entry[]): Promise<void> {
  const bundles = [
    "ssl/certs/ca-certificates.crt",
    "ssl/cert.pem",
    "pki/tls/certs/ca-bundle.crt",
    "ssl/ca-bundle.pem",
  ];
  for (const name of bundles) {
    const contents = await publicContents(`/etc/${name}`);
    if (contents === undefined || !isCertificate(contents)) continue;
    entries.push({ kind: "file", path: `etc/${name}`, contents });
  }
  for (const name of await names("/etc/ssl/certs")) {
    const target = await maybe(() => readlink(`/etc/ssl/certs/${name}`));
    const resolved = await maybe(() => realpath(`/etc/ssl/certs/${name}`));
    if (target !== undefined && resolved?.startsWith("/usr/share/"))
      entries.push({ kind: "link", path: `etc/ssl/certs/${name}`, target: resolved });
  }
}

function isCertificate(contents: Buffer): boolean {
  return contents.includes("-----BEGIN CERTIFICATE-----") && !contents.includes("PRIVATE KEY-----");
}

/** @returns undefined for what is missing, not for everybody to read, or too large. */
async function publicContents(path: string): Promise<Buffer | undefined> {
  const found = await maybe(() => stat(path));
  if (found === undefined || !found.isFile() || found.size > largestShownFile) return undefined;
  if ((found.mode & 0o004) === 0) return undefined;
  return maybe(() => readFile(path));
}

async function names(path: string): Promise<string[]> {
  return ((await maybe(() => readdir(path))) ?? []).sort();
}

/** The machine's /etc may lack anything. */
async function maybe<T>(read: () => Promise<T>): Promise<T | undefined> {
  try {
    return await read();
  } catch (error) {
    if (error instanceof Error && "code" in error) return undefined;
    throw error;
  }
}
