// The file calls of the backend, run inside the sandbox so that no path leads out of it: a request as JSON in, an answer as JSON or
// bytes out. Exit codes say what went wrong: 40 for status 400, 44 for 404, 49 for 409.
import * as fs from "node:fs";
import path from "node:path";
import { pipeline } from "node:stream/promises";

const { call, path: at, from = at, to, ...options } = JSON.parse(process.argv[2]);
const { follow, depth, offset, length, mode, recursive, parents } = options;
const ends = { ENOENT: 44, EEXIST: 49, ENOTEMPTY: 49, EISDIR: 49, ENOTDIR: 40, ELOOP: 40, EINVAL: 40 };
const kinds = ["File:file", "Directory:dir", "SymbolicLink:symlink", "FIFO:fifo", "Socket:socket"]
  .concat(["CharacterDevice:char_device", "BlockDevice:block_device"])
  .map((each) => each.split(":"));
const kindOf = (stat) => kinds.find(([name]) => stat[`is${name}`]())?.[1];

function describe(at, isFollowed) {
  const stat = (isFollowed ? fs.statSync : fs.lstatSync)(at);
  const { size, uid, gid, mtimeMs: modified_ms } = stat;
  const symlink_target = stat.isSymbolicLink() ? fs.readlinkSync(at) : null;
  return {
    path: at,
    type: kindOf(stat),
    size,
    mode: stat.mode & 0o7777,
    uid,
    gid,
    modified_ms,
    symlink_target,
  };
}
/** Of depth 0 all that is below. */
function below(folder, levels) {
  return fs.readdirSync(folder).flatMap((name) => {
    const entry = describe(path.join(folder, name));
    return [entry, ...(entry.type === "dir" && levels !== 1 ? below(entry.path, levels - 1) : [])];
  });
}
function regular(at) {
  const stat = fs.statSync(at, { throwIfNoEntry: false });
  if (stat && !stat.isFile()) process.exit(40);
  return stat;
}
const calls = {
  stat: () => describe(from, follow),
  list: () => ({ entries: below(from, Number(depth)) }),
  async read() {
    if (!regular(from)) process.exit(44);
    const end = Number(offset) + Number(length) - 1;
    await pipeline(fs.createReadStream(from, { start: Number(offset), end }), process.stdout);
  },
  async write() {
    const old = regular(from);
    fs.mkdirSync(path.dirname(from), { recursive: true });
    // What a link leads to is replaced, not the link.
    const real = old ? fs.realpathSync(from) : from;
    // Calls may come in one millisecond, each of them process 2 of a namespace of its own.
    const part = path.join(path.dirname(real), `.part-${crypto.randomUUID()}`);
    // An upload that was broken off has not come to its end.
    const whole = () => String(fs.readFileSync(3)) === "whole";
    const isTaken = await pipeline(process.stdin, fs.createWriteStream(part)).then(whole, () => false);
    if (!isTaken) process.exit(fs.rmSync(part, { force: true }) ?? 1);
    fs.chmodSync(part, mode === undefined ? (old?.mode ?? 0o644) & 0o7777 : Number(mode));
    fs.renameSync(part, real);
    return describe(from, true);
  },
  remove() {
    if (recursive) return describe(from) && fs.rmSync(from, { recursive: true });
    fs.lstatSync(from).isDirectory() ? fs.rmdirSync(from) : fs.unlinkSync(from);
  },
  move() {
    fs.lstatSync(from);
    fs.mkdirSync(path.dirname(to), { recursive: true });
    fs.renameSync(from, to);
  },
  chmod: () => fs.chmodSync(from, Number(mode)),
  mkdir() {
    fs.mkdirSync(from, { recursive: parents });
    if (mode !== undefined) fs.chmodSync(from, Number(mode));
    return describe(from, true);
  },
};
try {
  const answer = await calls[call]();
  if (call !== "read") console.log(JSON.stringify(answer ?? {}));
} catch (error) {
  process.exit(ends[error.code] ?? 1);
}
