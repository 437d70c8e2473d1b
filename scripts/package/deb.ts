import { createHash } from "node:crypto";
import { createReadStream, createWriteStream, readFileSync } from "node:fs";
import { rm, stat } from "node:fs/promises";
import path from "node:path";
import { Readable } from "node:stream";
import { pipeline } from "node:stream/promises";
import { createGzip } from "node:zlib";
import { type Entry, tarOf, withFolders } from "./archive.ts";

/** Where the package puts what the tarball holds; deploy/alcove.service names it too. */
export const installedAt = "opt/alcove";

const maintainerScripts = ["preinst", "postinst", "prerm", "postrm"];
const architectures: Readonly<Record<string, string>> = { x64: "amd64", arm64: "arm64" };

/** Debian's name of a processor as Node calls it. */
export function debianArchitecture(arch: string): string {
  const found = architectures[arch];
  if (found === undefined)
    throw new Error(`packages are made for ${Object.keys(architectures).join(" and ")}, not for ${arch}`);
  return found;
}

/** What the package puts onto the machine: the installation, and what the system finds it by. */
export function debianEntries(root: string, contents: readonly Entry[]): Entry[] {
  const file = (to: string, from: string): Entry => ({
    path: to,
    type: "file",
    mode: 0o644,
    source: path.join(root, from),
  });
  const entries = withFolders([
    ...contents.map((entry) => ({ ...entry, path: `${installedAt}/${entry.path}` })),
    { path: "usr/bin/alcove", type: "symlink", target: `../../${installedAt}/bin/alcove` },
    file("etc/alcove/alcove.yaml", "deploy/alcove.yaml"),
    file("usr/lib/systemd/system/alcove.service", "deploy/alcove.service"),
    file("usr/share/doc/alcove/copyright", "deploy/debian/copyright"),
    { path: "usr/share/doc/alcove/examples", type: "symlink", target: `../../../../${installedAt}/deploy` },
  ]);
  // The machine's: no package of Debian's has it, and dpkg removes with a package what it alone has and nothing is left in.
  return entries.filter((entry) => entry.path !== path.dirname(installedAt));
}

/** A Debian package: an `ar` of two compressed tars. Written without Debian's tools, so that any machine can. */
export async function writeDebianPackage(options: {
  file: string;
  root: string;
  entries: readonly Entry[];
  version: string;
  arch: string;
  mtime: Date;
}): Promise<void> {
  const { file, root, entries, mtime } = options;
  const control = withFolders([
    text("control", await controlFile(root, options)),
    text("conffiles", "/etc/alcove/alcove.yaml\n"),
    text("md5sums", await checksums(entries)),
    ...maintainerScripts.map(
      (name): Entry => ({
        path: name,
        type: "file",
        mode: 0o755,
        source: path.join(root, "deploy/debian", name),
      }),
    ),
  ]);
  const parts = [`${file}.control`, `${file}.data`] as const;
  try {
    await Promise.all([
      compress(dotted(control), parts[0], mtime),
      compress(dotted(entries), parts[1], mtime),
    ]);
    const sizes = await Promise.all(parts.map(async (part) => (await stat(part)).size));
    const output = createWriteStream(file);
    const members = async function* () {
      const seconds = Math.floor(mtime.getTime() / 1_000);
      yield Buffer.from("!<arch>\n");
      yield Buffer.concat([arHeader("debian-binary", 4, seconds), Buffer.from("2.0\n")]);
      for (const [index, name] of ["control.tar.gz", "data.tar.gz"].entries()) {
        const size = sizes[index] ?? 0;
        yield arHeader(name, size, seconds);
        yield* createReadStream(parts[index] ?? "");
        if (size % 2 === 1) yield Buffer.from("\n");
      }
    };
    await pipeline(Readable.from(members()), output);
  } finally {
    await Promise.all(parts.map((part) => rm(part, { force: true })));
  }
}

/** Writes a compressed tar. Nothing in it tells when, where or by whom it was made. */
export async function compress(entries: readonly Entry[], file: string, mtime: Date): Promise<void> {
  await pipeline(Readable.from(tarOf(entries, mtime)), createGzip({ level: 6 }), createWriteStream(file));
}

/** Names as `dpkg` writes them. */
function dotted(entries: readonly Entry[]): Entry[] {
  return entries.map((entry) => ({ ...entry, path: `./${entry.path}` }));
}

function text(name: string, content: string): Entry {
  return { path: name, type: "file", mode: 0o644, content: Buffer.from(content) };
}

function arHeader(name: string, size: number, seconds: number): Buffer {
  const fields = [
    name.padEnd(16),
    String(seconds).padEnd(12),
    "0".padEnd(6),
    "0".padEnd(6),
    "100644".padEnd(8),
    String(size).padEnd(10),
  ];
  return Buffer.from(`${fields.join("")}\`\n`, "latin1");
}

async function controlFile(
  root: string,
  options: { entries: readonly Entry[]; version: string; arch: string },
): Promise<string> {
  let bytes = 0;
  for (const entry of options.entries)
    if (entry.type === "file")
      bytes += "content" in entry ? entry.content.length : (await stat(entry.source)).size;
  return readFileSync(path.join(root, "deploy/debian/control"), "utf8")
    .replace("@VERSION@", options.version)
    .replace("@ARCHITECTURE@", debianArchitecture(options.arch))
    .replace("@INSTALLED_SIZE@", String(Math.ceil(bytes / 1_024)));
}

/** For `dpkg --verify`. */
async function checksums(entries: readonly Entry[]): Promise<string> {
  const lines: string[] = [];
  for (const entry of entries) {
    if (entry.type !== "file" || entry.path.startsWith("etc/")) continue;
    const hash = createHash("md5");
    if ("content" in entry) hash.update(entry.content);
    else for await (const chunk of createReadStream(entry.source)) hash.update(chunk as Buffer);
    lines.push(`${hash.digest("hex")}  ${entry.path}\n`);
  }
  return lines.join("");
}
