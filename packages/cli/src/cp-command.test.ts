import { execFileSync } from "node:child_process";
import { constants } from "node:fs";
import { lstat, mkdir, open, readdir, readFile, symlink, writeFile } from "node:fs/promises";
import path from "node:path";
import { describe, expect, test } from "vitest";
import { commandsOfTests } from "./testing/commands.ts";

const at = commandsOfTests();

/** A service whose directory is a tar of these files, in which `evil` has another name. */
async function archive(files: string[], evil: string): Promise<typeof at.service.answer> {
  const { create } = await import("tar");
  const tar = create(
    {
      cwd: at.dir,
      sync: true,
      onWriteEntry: (entry) => {
        if (entry.path === "evil") entry.path = evil;
      },
    },
    files,
  );
  const bytes: Buffer[] = [];
  for (let chunk = tar.read(); chunk !== null; chunk = tar.read()) bytes.push(chunk);
  const folder = { name: "d", path: "/d", is_dir: true, size: 0, mode: "0755", mod_time: "", type: "dir" };
  return ({ path: route }) =>
    route.endsWith("/stat") ? { json: { ...folder, uid: 0, gid: 0 } } : { chunks: [Buffer.concat(bytes)] };
}

describe("cp", () => {
  test("a path inside that is not absolute is told as one, by name too", async () => {
    for (const [given, meant] of [
      ["web:b", "web:/workspace/b"],
      ["sb-a:b", "sb-a:/workspace/b"],
      ["web:", "web:/workspace/"],
    ] as const) {
      const { code, stderr } = await at.run("cp", given, "copy");
      expect([code, stderr]).toEqual([2, expect.stringContaining(`absolute, such as ${meant}`)]);
    }
    expect((await at.run("cp", "a", "b")).stderr).not.toContain("absolute");
    expect(at.service.requests).toEqual([]);
  });

  test("sends a file with its mode and reads it back", async () => {
    await writeFile(path.join(at.dir, "a"), "content", { mode: 0o750 });
    at.service.answer = ({ method, path: route }) => {
      if (method === "PUT") return { json: { status: "written" } };
      if (route.endsWith("/stat")) return { status: 404, json: { code: "not_found", message: "?" } };
      return { headers: { "content-length": "3" }, chunks: ["abc"] };
    };
    expect((await at.run("cp", "a", "sb-a:/w/b")).code).toBe(0);
    const put = at.service.requests.find(({ method }) => method === "PUT");
    expect(put).toMatchObject({ path: "/sandboxes/sb-a/files", body: "content" });
    expect(put?.query.get("path")).toBe("/w/b");
    expect(put?.query.get("mode")).toBe("0750");
    expect((await at.run("cp", "-q", "sb-a:/x", "copy")).code).toBe(0);
    expect(await readFile(path.join(at.dir, "copy"), "utf8")).toBe("abc");
    expect(await at.run("cp", "sb-a:/x", "-")).toMatchObject({ code: 0, stdout: "abc" });
  });

  test("leaves no partial file when the connection breaks", async () => {
    at.service.answer = ({ path: route }) =>
      route.endsWith("/stat")
        ? { status: 404, json: { code: "not_found", message: "?" } }
        : { headers: { "content-length": "100" }, chunks: ["abc", null] };
    expect((await at.run("cp", "sb-a:/x", "copy")).code).toBe(6);
    await expect(readFile(path.join(at.dir, "copy"))).rejects.toThrow("ENOENT");
  });

  test("writes to what is no file, and to what a link leads to", async () => {
    at.service.answer = ({ path: route }) =>
      route.endsWith("/stat")
        ? { status: 404, json: { code: "not_found", message: "?" } }
        : { headers: { "content-length": "3" }, chunks: ["abc"] };
    const [fifo, file, link] = ["fifo", "file", "link"].map((name) => path.join(at.dir, name)) as [
      string,
      string,
      string,
    ];
    execFileSync("mkfifo", [fifo]);
    await writeFile(file, "old");
    await symlink(file, link);
    const reader = await open(fifo, constants.O_RDONLY | constants.O_NONBLOCK);
    expect((await at.run("cp", "sb-a:/x", "fifo")).code).toBe(0);
    expect((await lstat(fifo)).isFIFO()).toBe(true);
    expect((await reader.read()).bytesRead).toBe(3);
    await reader.close();
    expect((await at.run("cp", "sb-a:/x", "link")).code).toBe(0);
    expect((await lstat(link)).isSymbolicLink()).toBe(true);
    expect(await readFile(file, "utf8")).toBe("abc");
    const nowhere = path.join(at.dir, "nowhere");
    await symlink("gone", nowhere);
    const refused = await at.run("cp", "sb-a:/x", "nowhere");
    expect([refused.code, refused.stderr]).toEqual([
      1,
      expect.stringContaining("a link to gone, which is not there"),
    ]);
    expect((await lstat(nowhere)).isSymbolicLink()).toBe(true);
  });

  test("a tar that leads out of the target writes nothing there", async () => {
    await writeFile(path.join(at.dir, "evil"), "evil");
    await symlink("/tmp", path.join(at.dir, "link"));
    at.service.answer = await archive(["evil", "link"], "../escaped");
    await at.run("cp", "-r", "sb-a:/d", "out/");
    await expect(readFile(path.join(at.dir, "escaped"))).rejects.toThrow("ENOENT");
    await expect(readFile(path.join(at.dir, "out", "escaped"))).rejects.toThrow("ENOENT");
  });

  test("a link that leads out is left out, with its name", async () => {
    await symlink("/usr/bin/python3", path.join(at.dir, "python3"));
    await symlink("python3", path.join(at.dir, "python"));
    await symlink("../../away", path.join(at.dir, "up"));
    at.service.answer = await archive(["python3", "python", "up"], "none");
    const { code, stderr } = await at.run("cp", "-r", "sb-a:/d", "out/");
    expect(code).toBe(0);
    expect(stderr).toContain("alcove: python3: left out: a link to /usr/bin/python3, which leads out\n");
    expect(stderr).toMatch(/^alcove: up: .*escapes/m);
    expect(await readdir(path.join(at.dir, "out", "d"))).toEqual(["python"]);
  });

  test("what a link of the tree would be written through is left out", async () => {
    await symlink("sub", path.join(at.dir, "link"));
    await writeFile(path.join(at.dir, "evil"), "x");
    at.service.answer = await archive(["link", "evil"], "link/file");
    const { code, stderr } = await at.run("cp", "-r", "sb-a:/d", "out/");
    expect([code, stderr]).toEqual([0, expect.stringMatching(/link\/file: .*through symbolic link/)]);
  });

  test("what cannot be taken in is left out, with its name", async () => {
    at.service.answer = ({ path: route }) =>
      route.endsWith("/stat")
        ? { status: 404, json: { code: "not_found", message: "?" } }
        : { json: { status: "unpacked", entries: 1 } };
    await mkdir(path.join(at.dir, "in"));
    execFileSync("mkfifo", [path.join(at.dir, "in", "fifo")]);
    const { code, stderr } = await at.run("cp", "-r", "in", "sb-a:/d");
    expect([code, stderr]).toEqual([0, expect.stringContaining("alcove: in/fifo: left out")]);
  });

  test("of what is left out ten are named, and the rest is counted", async () => {
    const names = Array.from({ length: 12 }, (_, index) => `link${index}`);
    for (const name of names) await symlink("/away", path.join(at.dir, name));
    at.service.answer = await archive(names, "none");
    const { stderr } = await at.run("cp", "-r", "sb-a:/d", "out/");
    expect(stderr.match(/left out/g)).toHaveLength(10);
    expect(stderr).toContain("and 2 more like these");
  });

  test("names of an archive that cannot be written do not reach the terminal as they are", async () => {
    await writeFile(path.join(at.dir, "evil"), "evil");
    at.service.answer = await archive(["evil"], `\u001b]0;taken\u0007${"n".repeat(300)}`);
    const { code, stderr } = await at.run("cp", "-r", "sb-a:/d", "out/");
    // Nor does it count as copied.
    expect(code).toBe(1);
    expect(stderr).toContain("out/d is incomplete");
    expect(stderr).toContain("\\u001b]0;taken\\u0007nnn");
    expect(stderr).not.toMatch(/[\u001b\u0007]/);
  });
});
