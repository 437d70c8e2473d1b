/** One member of an archive that tests make by hand. */
export interface TestMember {
  name: string;
  type?: "file" | "dir" | "symlink" | "hardlink" | "device" | "pax";
  content?: string | Buffer;
  link?: string;
  mode?: number;
  uid?: number;
  gid?: number;
  /** Pax records before it, as `LENGTH KEY=VALUE` lines. */
  pax?: readonly string[];
}

const flags = { file: "0", hardlink: "1", symlink: "2", device: "3", dir: "5", pax: "x" } as const;

/** Writes what no honest tool would. */
export function tarOf(members: readonly TestMember[]): Buffer {
  return Buffer.concat([...members.map(memberOf), Buffer.alloc(1_024)]);
}

/** One record of a pax header: its length counts itself. */
export function paxRecord(text: string): string {
  const length = (digits: number) => text.length + 2 + digits;
  const digits = [1, 2, 3, 4, 5, 6, 7].find((count) => String(length(count)).length === count) ?? 7;
  return `${length(digits)} ${text}\n`;
}

function memberOf(member: TestMember): Buffer {
  if (member.pax === undefined) return plainMember(member);
  const content = member.pax.map(paxRecord).join("");
  return Buffer.concat([plainMember({ name: "pax", type: "pax", content }), plainMember(member)]);
}

function plainMember(member: TestMember): Buffer {
  const content = Buffer.from(member.content ?? "");
  const type = member.type ?? "file";
  const head = Buffer.alloc(512);
  head.write(member.name, 0, 100);
  const number = (value: number, at: number, length: number) =>
    head.write(value.toString(8).padStart(length - 1, "0"), at);
  number(member.mode ?? (type === "dir" ? 0o755 : 0o644), 100, 8);
  number(member.uid ?? 0, 108, 8);
  number(member.gid ?? 0, 116, 8);
  number(content.length, 124, 12);
  number(0, 136, 12);
  head.write(flags[type], 156);
  head.write(member.link ?? "", 157, 100);
  head.write("ustar\u000000", 257);
  head.fill(" ", 148, 156);
  const sum = head.reduce((total, byte) => total + byte, 0);
  head.write(`${sum.toString(8).padStart(6, "0")}\0 `, 148);
  return Buffer.concat([head, content, Buffer.alloc((512 - (content.length % 512)) % 512)]);
}
