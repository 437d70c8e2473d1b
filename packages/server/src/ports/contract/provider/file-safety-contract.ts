import { expect, it } from "vitest";
import { BadRequest, NotFound, TooLarge } from "../../index.ts";
import { type ContractHarness, chunks, collect, eventually, run, shell, soon } from "./harness.ts";

export function fileSafetyContract(harness: ContractHarness): void {
  it("stat() describes a last symlink; read and write follow it", async () => {
    const operations = await harness.shared();
    const { files } = operations;
    await run(
      operations,
      "mkdir -p ln && echo real > ln/target && ln -s target ln/link && ln -s nowhere ln/broken",
    );
    expect(await files.stat("/workspace/ln/link", soon())).toMatchObject({
      type: "symlink",
      symlinkTarget: "target",
    });
    expect(await files.stat("/workspace/ln/link", { ...soon(), follow: true })).toMatchObject({
      type: "file",
    });
    expect((await collect((await files.read("/workspace/ln/link", soon())).body)).toString()).toBe("real\n");
    await files.write("/workspace/ln/link", chunks("changed\n"), soon());
    expect((await run(operations, "cat ln/target; test -L ln/link && echo still")).stdout).toBe(
      "changed\nstill\n",
    );
    await expect(files.read("/workspace/ln/broken", soon())).rejects.toThrow(NotFound);
    await files.remove("/workspace/ln/link", { ...soon(), recursive: false });
    expect((await run(operations, "cat ln/target")).stdout).toBe("changed\n");
  });

  it("symlinks lead inside the sandbox, never to the host", async () => {
    const operations = await harness.shared();
    await run(
      operations,
      "mkdir -p out && ln -s ../../../../../../../../.. out/up && ln -s /proc/1/root out/magic && ln -s a out/b && ln -s b out/a",
    );
    const inside = (await run(operations, "cat /etc/hostname 2>/dev/null; ls / | sort")).stdout;
    const listed = await operations.files.list("/workspace/out/up", { ...soon(), depth: 1 });
    expect((await run(operations, "ls -A / | sort")).stdout.trim().split("\n").sort()).toEqual(
      listed.map((entry) => entry.name).sort(),
    );
    expect(inside).toContain("workspace");
    await expect(operations.files.read("/workspace/out/a", soon())).rejects.toThrow();
  });

  it("removing a tree does not follow the symlinks in it", async () => {
    const operations = await harness.shared();
    await run(operations, "mkdir -p keep victim && echo x > keep/file && ln -s ../keep victim/link");
    await operations.files.remove("/workspace/victim", { ...soon(), recursive: true });
    expect((await run(operations, "cat keep/file")).stdout).toBe("x\n");
  });

  it("FIFOs and devices are refused without waiting for them", async () => {
    const operations = await harness.shared();
    await run(operations, "mkfifo /workspace/fifo");
    expect((await operations.files.stat("/workspace/fifo", soon())).type).toBe("fifo");
    await expect(operations.files.read("/workspace/fifo", soon(3_000))).rejects.toThrow(BadRequest);
    await expect(operations.files.write("/workspace/fifo", chunks("x"), soon(3_000))).rejects.toThrow(
      BadRequest,
    );
    await expect(operations.files.read("/dev/zero", soon(3_000))).rejects.toThrow(BadRequest);
    await expect(operations.files.read("/dev/tty", soon(3_000))).rejects.toThrow();
  });

  it("readers of a file being replaced see the old one or the new one", async () => {
    const operations = await harness.shared();
    const before = Buffer.alloc(300_000, "a");
    const after = Buffer.alloc(300_000, "b");
    await operations.files.write("/workspace/atomic", chunks(before), soon());
    const { body } = await operations.files.read("/workspace/atomic", soon());
    const first = body[Symbol.asyncIterator]();
    const head = (await first.next()).value as Buffer;
    await operations.files.write("/workspace/atomic", chunks(after), soon());
    const rest = [head];
    for (let next = await first.next(); !next.done; next = await first.next()) rest.push(next.value);
    expect(Buffer.concat(rest).equals(before)).toBe(true);
    expect(
      (await collect((await operations.files.read("/workspace/atomic", soon())).body)).equals(after),
    ).toBe(true);
  });

  it("an upload that is broken off leaves the old file and nothing else", async () => {
    const operations = await harness.shared();
    const { files } = operations;
    await files.write("/workspace/up/file", chunks("old"), soon());
    const stop = new AbortController();
    async function* endless() {
      yield Buffer.alloc(200_000, "n");
      stop.abort(new Error("changed my mind"));
      await new Promise(() => undefined);
    }
    const write = files.write("/workspace/up/file", endless(), { signal: stop.signal });
    await expect(write).rejects.toThrow("changed my mind");
    const failing = files.write(
      "/workspace/up/file",
      (async function* () {
        yield Buffer.alloc(10);
        throw new Error("the source broke");
      })(),
      soon(),
    );
    await expect(failing).rejects.toThrow("the source broke");
    await eventually(async () => {
      expect((await run(operations, "ls -A up; cat up/file")).stdout).toBe("file\nold");
    });
  });

  it("an upload above its limit is TooLarge and leaves nothing", async () => {
    const { files } = await harness.shared();
    const write = files.write("/workspace/big/file", chunks("12345", "67890"), { ...soon(), maxBytes: 8 });
    await expect(write).rejects.toThrow(TooLarge);
    await eventually(async () => {
      await expect(files.stat("/workspace/big/file", soon())).rejects.toThrow(NotFound);
    });
    await files.write("/workspace/big/exact", chunks("12345678"), { ...soon(), maxBytes: 8 });
  });

  it("a body that is not read to its end is let go by destroying it", async () => {
    const operations = await harness.shared();
    await run(operations, "head -c 20000000 /dev/zero > big.bin");
    const { body } = await operations.files.read("/workspace/big.bin", soon());
    await body[Symbol.asyncIterator]().next();
    body.destroy();
    expect((await run(operations, "echo well")).stdout).toBe("well\n");
  });

  it("an archive that reaches outside its folder is refused", async () => {
    const operations = await harness.shared();
    await operations.files.mkdir("/workspace/confined", { ...soon(), parents: true });
    for (const name of ["../escaped", "/escaped", "sub/../../escaped"]) {
      const unpack = operations.files.unpack("/workspace/confined", chunks(tarOf(name, "x")), soon());
      await expect(unpack, name).rejects.toThrow(BadRequest);
    }
    expect((await run(operations, "ls /escaped /workspace/escaped 2>/dev/null; true")).stdout).toBe("");
  });

  it("a port inside can be dialled; where nothing listens it is NotFound", async () => {
    const operations = await harness.shared();
    await expect(operations.dialPort(9, soon())).rejects.toThrow(NotFound);
    const spec = shell("while :; do echo hello from inside | nc -l -p 18081 >/dev/null 2>&1; done", {
      detached: true,
    });
    await operations.execs.startDetached(spec, soon());
    const text = await eventually(async () => {
      let seen = "";
      for await (const part of await operations.dialPort(18081, soon())) {
        seen += String(part);
        if (seen.endsWith("\n")) break;
      }
      expect(seen).not.toBe("");
      return seen;
    });
    expect(text).toBe("hello from inside\n");
    await operations.execs.kill(spec.execId, { ...soon(), reason: "cancelled" });
  });
}

/** A tar of one file, by hand, so that it can have names no program would write. */
export function tarOf(name: string, contents: string): Buffer {
  const header = Buffer.alloc(512);
  header.write(name, 0);
  header.write("0000644\0", 100);
  header.write("0000000\0", 108);
  header.write("0000000\0", 116);
  header.write(`${contents.length.toString(8).padStart(11, "0")}\0`, 124);
  header.write("00000000000\0", 136);
  header.write("        0", 148);
  header.write("ustar\0", 257);
  header.write("00", 263);
  const sum = header.reduce((total, byte) => total + byte, 0);
  header.write(`${sum.toString(8).padStart(6, "0")}\0 `, 148);
  const body = Buffer.alloc(512);
  body.write(contents);
  return Buffer.concat([header, body, Buffer.alloc(1024)]);
}
