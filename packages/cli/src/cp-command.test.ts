import { readFile, symlink, writeFile } from "node:fs/promises";
import path from "node:path";
import { describe, expect, test } from "vitest";
import { commandsOfTests } from "./testing/commands.ts";

const at = commandsOfTests();

describe("cp", () => {
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

  test("a tar that leads out of the target writes nothing there", async () => {
    const { create } = await import("tar");
    await writeFile(path.join(at.dir, "evil"), "evil");
    await symlink("/tmp", path.join(at.dir, "link"));
    const tar = create(
      {
        cwd: at.dir,
        sync: true,
        portable: true,
        onWriteEntry: (entry) => {
          if (entry.path === "evil" && entry.header) entry.path = "../escaped";
        },
      },
      ["evil", "link"],
    );
    const bytes: Buffer[] = [];
    for (let chunk = tar.read(); chunk !== null; chunk = tar.read()) bytes.push(chunk);
    at.service.answer = ({ path: route }) =>
      route.endsWith("/stat")
        ? {
            json: {
              name: "d",
              path: "/d",
              is_dir: true,
              size: 0,
              mode: "0755",
              mod_time: "",
              type: "dir",
              uid: 0,
              gid: 0,
            },
          }
        : { chunks: [Buffer.concat(bytes)] };
    await at.run("cp", "-r", "sb-a:/d", "out/");
    await expect(readFile(path.join(at.dir, "escaped"))).rejects.toThrow("ENOENT");
    await expect(readFile(path.join(at.dir, "out", "escaped"))).rejects.toThrow("ENOENT");
  });
});
