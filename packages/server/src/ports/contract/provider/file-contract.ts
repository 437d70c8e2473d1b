import { randomBytes } from "node:crypto";
import { expect, it } from "vitest";
import { BadRequest, Conflict, type FileChange, NotFound } from "../../index.ts";
import { type ContractHarness, chunks, collect, run, soon } from "./harness.ts";

export function fileContract(harness: ContractHarness): void {
  it("a file of a mebibyte is written and read back unchanged", async () => {
    const { files } = await harness.shared();
    const contents = randomBytes(1024 * 1024);
    const path = "/workspace/a/b/c.bin";
    const written = await files.write(path, chunks(contents.subarray(0, 99), contents.subarray(99)), soon());
    expect(written).toMatchObject({ path, name: "c.bin", size: contents.length, type: "file", mode: 0o644 });
    const { info, length, body } = await files.read(path, soon());
    expect(info.size).toBe(contents.length);
    expect(length).toBe(contents.length);
    expect((await collect(body)).equals(contents)).toBe(true);
  });

  it("a part of a file is read by offset and length, also beyond its end", async () => {
    const { files } = await harness.shared();
    await files.write("/workspace/range", chunks("0123456789"), soon());
    const part = await files.read("/workspace/range", { ...soon(), offset: 3, length: 4 });
    expect(part.length).toBe(4);
    expect((await collect(part.body)).toString()).toBe("3456");
    const tail = await files.read("/workspace/range", { ...soon(), offset: 8, length: 100 });
    expect((await collect(tail.body)).toString()).toBe("89");
    const beyond = await files.read("/workspace/range", { ...soon(), offset: 50 });
    expect((await collect(beyond.body)).length).toBe(0);
  });

  it("an empty file is a file", async () => {
    const { files } = await harness.shared();
    await files.write("/workspace/empty", chunks(), soon());
    const { body, length } = await files.read("/workspace/empty", soon());
    expect(length).toBe(0);
    expect((await collect(body)).length).toBe(0);
  });

  it("what commands write is read, and what is written commands read", async () => {
    const operations = await harness.shared();
    await operations.files.write("/workspace/shared", chunks("from outside\n"), soon());
    expect((await run(operations, "cat /workspace/shared; echo inside > /workspace/mine")).stdout).toBe(
      "from outside\n",
    );
    const { body } = await operations.files.read("/workspace/mine", soon());
    expect((await collect(body)).toString()).toBe("inside\n");
  });

  it("a mode that is given applies; without one a replaced file keeps its own", async () => {
    const { files } = await harness.shared();
    expect((await files.write("/workspace/run.sh", chunks("a"), { ...soon(), mode: 0o750 })).mode).toBe(
      0o750,
    );
    expect((await files.write("/workspace/run.sh", chunks("b"), soon())).mode).toBe(0o750);
    await files.chmod("/workspace/run.sh", 0o600, soon());
    expect((await files.stat("/workspace/run.sh", soon())).mode).toBe(0o600);
    await expect(files.chmod("/workspace/none", 0o600, soon())).rejects.toThrow(NotFound);
  });

  it("a file that nobody may write has that mode", async () => {
    const { files } = await harness.shared();
    await files.write("/workspace/kept", chunks("a"), { ...soon(), mode: 0o444 });
    expect((await files.stat("/workspace/kept", soon())).mode).toBe(0o444);
  });

  it("what a user writes belongs to that user, parents included", async () => {
    const operations = await harness.shared();
    const options = { ...soon(), user: "1000:1000" };
    await operations.files.write("/workspace/users/deep/file", chunks("x"), options);
    for (const path of ["/workspace/users", "/workspace/users/deep", "/workspace/users/deep/file"]) {
      expect(await operations.files.stat(path, soon())).toMatchObject({ uid: 1000, gid: 1000 });
    }
  });

  it("a missing path is NotFound, a wrong kind a BadRequest", async () => {
    const { files } = await harness.shared();
    await files.write("/workspace/plain", chunks("x"), soon());
    await expect(files.read("/workspace/missing", soon())).rejects.toThrow(NotFound);
    await expect(files.stat("/workspace/missing", soon())).rejects.toThrow(NotFound);
    await expect(files.list("/workspace/missing", { ...soon(), depth: 1 })).rejects.toThrow(NotFound);
    await expect(files.remove("/workspace/missing", { ...soon(), recursive: true })).rejects.toThrow(
      NotFound,
    );
    await expect(files.move("/workspace/missing", "/workspace/x", soon())).rejects.toThrow(NotFound);
    await expect(files.read("/workspace", soon())).rejects.toThrow(BadRequest);
    await expect(files.write("/workspace", chunks("x"), soon())).rejects.toThrow(BadRequest);
    await expect(files.list("/workspace/plain", { ...soon(), depth: 1 })).rejects.toThrow(BadRequest);
    await expect(files.read("/workspace/plain/below", soon())).rejects.toThrow();
  });

  it("mkdir() makes parents when asked, and refuses what exists otherwise", async () => {
    const { files } = await harness.shared();
    const made = await files.mkdir("/workspace/m/n/o", { ...soon(), parents: true });
    expect(made).toMatchObject({ type: "dir", path: "/workspace/m/n/o" });
    await files.mkdir("/workspace/m/n/o", { ...soon(), parents: true });
    await expect(files.mkdir("/workspace/m/n/o", { ...soon(), parents: false })).rejects.toThrow(Conflict);
    await expect(files.mkdir("/workspace/q/r", { ...soon(), parents: false })).rejects.toThrow(NotFound);
  });

  it("list() goes as deep as asked and sorts by name", async () => {
    const { files } = await harness.shared();
    for (const name of ["z", "b/y", "b/a/x"])
      await files.write(`/workspace/tree/${name}`, chunks("1"), soon());
    const flat = await files.list("/workspace/tree", { ...soon(), depth: 1 });
    expect(flat.map((entry) => [entry.name, entry.type])).toEqual([
      ["b", "dir"],
      ["z", "file"],
    ]);
    const deep = await files.list("/workspace/tree", { ...soon(), depth: 3 });
    expect(deep.map((entry) => entry.path).sort()).toEqual([
      "/workspace/tree/b",
      "/workspace/tree/b/a",
      "/workspace/tree/b/a/x",
      "/workspace/tree/b/y",
      "/workspace/tree/z",
    ]);
  });

  it("a directory of three thousand files is listed whole", async () => {
    const operations = await harness.shared();
    await run(operations, "mkdir many && cd many && seq 1 3000 | xargs touch");
    expect(await operations.files.list("/workspace/many", { ...soon(), depth: 1 })).toHaveLength(3_000);
  });

  it("move() makes parents, replaces files and refuses a full directory", async () => {
    const { files } = await harness.shared();
    await files.write("/workspace/mv/from", chunks("new"), soon());
    await files.write("/workspace/mv/deep/er/to", chunks("old"), soon());
    await files.move("/workspace/mv/from", "/workspace/mv/deep/er/to", soon());
    expect((await collect((await files.read("/workspace/mv/deep/er/to", soon())).body)).toString()).toBe(
      "new",
    );
    await expect(files.stat("/workspace/mv/from", soon())).rejects.toThrow(NotFound);
    await files.move("/workspace/mv/deep", "/workspace/mv/other/place", soon());
    await files.write("/workspace/mv/second/file", chunks("x"), soon());
    await expect(files.move("/workspace/mv/second", "/workspace/mv/other", soon())).rejects.toThrow(Conflict);
  });

  it("remove() refuses a full directory unless it may go deep, and the root always", async () => {
    const { files } = await harness.shared();
    await files.write("/workspace/rm/file", chunks("x"), soon());
    await expect(files.remove("/workspace/rm", { ...soon(), recursive: false })).rejects.toThrow(Conflict);
    await files.remove("/workspace/rm", { ...soon(), recursive: true });
    await expect(files.stat("/workspace/rm", soon())).rejects.toThrow(NotFound);
    await expect(files.remove("/", { ...soon(), recursive: true })).rejects.toThrow(BadRequest);
  });

  it("glob() knows stars, braces, sets and double stars", async () => {
    const { files } = await harness.shared();
    for (const name of ["a.ts", "b.js", "c.md", "d/e.ts", "d/f/g.ts"]) {
      await files.write(`/workspace/glob/${name}`, chunks(""), soon());
    }
    const glob = (pattern: string) => files.glob(`/workspace/glob/${pattern}`, soon());
    expect(await glob("*.ts")).toEqual(["/workspace/glob/a.ts"]);
    expect(await glob("*.{ts,js}")).toEqual(["/workspace/glob/a.ts", "/workspace/glob/b.js"]);
    expect(await glob("[ac].*")).toEqual(["/workspace/glob/a.ts", "/workspace/glob/c.md"]);
    expect(await glob("**/*.ts")).toEqual([
      "/workspace/glob/a.ts",
      "/workspace/glob/d/e.ts",
      "/workspace/glob/d/f/g.ts",
    ]);
    expect(await glob("nothing*")).toEqual([]);
  });

  it("glob() takes no time for a pattern that is made to take long", async () => {
    const { files } = await harness.shared();
    await files.write(`/workspace/stars/${"a".repeat(200)}`, chunks(""), soon());
    const startedAt = performance.now();
    for (const pattern of [`${"*a".repeat(12)}*b`, "{1..3000000}", `${"{".repeat(100)}a`])
      expect(await files.glob(`/workspace/stars/${pattern}`, soon())).toEqual([]);
    expect(performance.now() - startedAt).toBeLessThan(5_000);
  });

  it("names with a newline, spaces and other alphabets work", async () => {
    const { files } = await harness.shared();
    const names = ["new\nline", "a b", "łódź-東京-🦀", "-dash", "qu'o\"te"];
    for (const name of names) await files.write(`/workspace/names/${name}`, chunks(name), soon());
    const listed = await files.list("/workspace/names", { ...soon(), depth: 1 });
    expect(listed.map((entry) => entry.name).sort()).toEqual([...names].sort());
    for (const name of names) {
      const { body } = await files.read(`/workspace/names/${name}`, soon());
      expect((await collect(body)).toString()).toBe(name);
    }
  });

  it("a directory is archived and unpacked elsewhere", async () => {
    const { files } = await harness.shared();
    await files.write("/workspace/pack/one", chunks("1"), { ...soon(), mode: 0o755 });
    await files.write("/workspace/pack/sub/two", chunks(Buffer.alloc(100_000, "2")), soon());
    const tar = await collect(await files.archive("/workspace/pack", soon()));
    expect(tar.length % 512).toBe(0);
    await files.mkdir("/workspace/unpacked", { ...soon(), parents: true });
    const { entries } = await files.unpack("/workspace/unpacked", chunks(tar), soon());
    expect(entries).toBeGreaterThanOrEqual(3);
    expect((await files.stat("/workspace/unpacked/one", soon())).mode).toBe(0o755);
    expect((await files.stat("/workspace/unpacked/sub/two", soon())).size).toBe(100_000);
    await expect(files.archive("/workspace/none", soon())).rejects.toThrow(NotFound);
  });

  it("watch() tells what is made, written and removed, and ends with its signal", async () => {
    const operations = await harness.shared();
    await operations.files.mkdir("/workspace/watched", { ...soon(), parents: true });
    const stop = new AbortController();
    const changes = await operations.files.watch("/workspace/watched", {
      signal: stop.signal,
      recursive: true,
    });
    await run(operations, "cd watched && echo 1 > f && mkdir d && rm f");
    const seen: FileChange[] = [];
    const iterator = changes[Symbol.asyncIterator]();
    while (!seen.some((change) => change.type === "remove")) {
      const next = await iterator.next();
      if (next.done) throw new Error("the watch ended");
      seen.push(next.value);
    }
    expect(seen).toContainEqual({ type: "create", path: "/workspace/watched/f" });
    expect(seen).toContainEqual({ type: "write", path: "/workspace/watched/f" });
    expect(seen).toContainEqual({ type: "create", path: "/workspace/watched/d" });
    expect(seen).toContainEqual({ type: "remove", path: "/workspace/watched/f" });
    stop.abort();
    await iterator.next().catch((error: unknown) => expect(error).toBe(stop.signal.reason));
  });
}
