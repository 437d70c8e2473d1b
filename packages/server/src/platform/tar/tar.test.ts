import { Readable } from "node:stream";
import { expect, test } from "vitest";
import { readTar } from "./tar-reader.ts";
import { type TarMember, tarEnd, tarHeader, tarPadded } from "./tar-writer.ts";

async function read(archive: Buffer) {
  const found = [];
  for await (const { header, body } of readTar(Readable.from([archive])))
    found.push({ ...header, content: Buffer.concat(await Array.fromAsync(body())).toString() });
  return found;
}

test("what is written is read again: kinds, owners, times, names longer than a header holds", async () => {
  const mtime = new Date(1_700_000_000_000);
  const long = `${"é".repeat(60)}/${"x".repeat(120)}`;
  const members: (TarMember & { content?: string })[] = [
    { name: "folder", type: "dir", mode: 0o750, size: 0, uid: 7, gid: 8, mtime },
    { name: "folder/file", type: "file", mode: 0o4755, size: 5, mtime, content: "hello" },
    { name: long, type: "file", mode: 0o600, size: 1, content: "1" },
    { name: "link", type: "symlink", mode: 0o777, size: 0, linkTarget: `../${long}` },
  ];
  const parts = members.flatMap(({ content, ...member }) => [
    tarHeader(member),
    tarPadded(Buffer.from(content ?? "")),
  ]);
  const found = await read(Buffer.concat([...parts, tarEnd]));
  expect(
    found.map(({ name, type, mode, content, linkTarget }) => [name, type, mode, content, linkTarget]),
  ).toEqual([
    ["folder/", "dir", 0o750, "", ""],
    ["folder/file", "file", 0o4755, "hello", ""],
    [long, "file", 0o600, "1", ""],
    ["link", "symlink", 0o777, "", `../${long}`],
  ]);
  expect(found[0]).toMatchObject({ uid: 7, gid: 8, mtime: 1_700_000_000 });
});

test("a name that fits a header in two parts needs no pax header", async () => {
  const name = `${"d".repeat(100)}/é${"x".repeat(90)}`;
  const folder = `${"d".repeat(100)}/${"e".repeat(99)}/`;
  const headers = [
    tarHeader({ name, type: "file", mode: 0o600, size: 0 }),
    tarHeader({ name: folder, type: "dir", mode: 0o700, size: 0 }),
  ];
  expect(headers.map(({ length }) => length)).toEqual([512, 512]);
  const found = await read(Buffer.concat([...headers, tarEnd]));
  expect(found.map((entry) => entry.name)).toEqual([name, folder]);
  const tooLong = tarHeader({ name: `${"a".repeat(160)}/b`, type: "file", mode: 0o600, size: 0 });
  expect(tooLong.length).toBe(3 * 512);
});
