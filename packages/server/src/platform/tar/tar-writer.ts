const block = 512;
const longestName = 100;
const longestPrefix = 155;

/** What a member's header says; contents follow it, padded to whole blocks. */
export interface TarMember {
  name: string;
  type: "file" | "dir" | "symlink";
  mode: number;
  /** Bytes of contents; 0 unless a file. */
  size: number;
  uid?: number;
  gid?: number;
  mtime?: Date;
  linkTarget?: string;
}

/** Ends an archive. */
export const tarEnd: Buffer = Buffer.alloc(2 * block);

const flags = { file: "0", symlink: "2", dir: "5" } as const;

/**
 * @returns a ustar header, with a pax header before it when a name or link is too long for one. A name that ustar can hold
 *  in two parts is written so: not everybody who reads tars reads pax headers, `dpkg` for one.
 */
export function tarHeader(member: TarMember): Buffer {
  const name = member.type === "dir" && !member.name.endsWith("/") ? `${member.name}/` : member.name;
  const link = member.linkTarget ?? "";
  const parts = inParts(name);
  const records = [
    ...(parts === undefined ? [paxRecord("path", name)] : []),
    ...(fits(link) ? [] : [paxRecord("linkpath", link)]),
  ];
  const own = header({ ...member, ...(parts ?? { name }), link, flag: flags[member.type] });
  if (records.length === 0) return own;
  const pax = Buffer.concat(records);
  const before = header({ name: "pax", link: "", flag: "x", mode: 0o644, size: pax.length });
  return Buffer.concat([before, tarPadded(pax), own]);
}

/** @returns contents filled up to whole blocks. */
export function tarPadded(content: Uint8Array): Buffer {
  return Buffer.concat([content, Buffer.alloc((block - (content.length % block)) % block)]);
}

function header(fields: {
  name: string;
  prefix?: string;
  link: string;
  flag: string;
  mode: number;
  size: number;
  uid?: number;
  gid?: number;
  mtime?: Date;
}): Buffer {
  const head = Buffer.alloc(block);
  const octal = (value: number, at: number, digits: number) =>
    head.write(value.toString(8).padStart(digits, "0"), at, "latin1");
  head.write(truncated(fields.name), 0, "latin1");
  octal(fields.mode, 100, 7);
  octal(fields.uid ?? 0, 108, 7);
  octal(fields.gid ?? 0, 116, 7);
  octal(fields.size, 124, 11);
  octal(Math.max(0, Math.floor((fields.mtime?.getTime() ?? 0) / 1_000)), 136, 11);
  head.write(fields.flag, 156, "latin1");
  head.write(truncated(fields.link), 157, "latin1");
  head.write("ustar\u000000", 257, "latin1");
  head.write(fields.prefix ?? "", 345, "utf8");
  // The checksum is taken with its own field full of spaces.
  head.fill(" ", 148, 156);
  const sum = head.reduce((total, byte) => total + byte, 0);
  head.write(`${sum.toString(8).padStart(6, "0")}\0 `, 148, "latin1");
  return head;
}

const fits = (text: string) => Buffer.byteLength(text) <= longestName;
const truncated = (text: string) => Buffer.from(text).subarray(0, longestName).toString("latin1");

/** @returns the name as a header holds it, in two parts when it must; undefined when it does not fit. */
function inParts(name: string): { name: string; prefix?: string } | undefined {
  if (fits(name)) return { name };
  for (let at = name.indexOf("/"); at > 0 && at < name.length - 1; at = name.indexOf("/", at + 1)) {
    const prefix = name.slice(0, at);
    const rest = name.slice(at + 1);
    if (Buffer.byteLength(prefix) > longestPrefix) return undefined;
    if (fits(rest)) return { name: rest, prefix };
  }
  return undefined;
}

function paxRecord(key: string, value: string): Buffer {
  const rest = Buffer.from(` ${key}=${value}\n`);
  let length = rest.length + 1;
  while (String(length).length + rest.length !== length) length += 1;
  return Buffer.concat([Buffer.from(String(length)), rest]);
}
