import { Readable } from "node:stream";
import { afterEach, describe, expect, it } from "vitest";
import { silentLogger } from "../../platform/logger.ts";
import { randomIds } from "../../platform/random-ids.ts";
import { systemClock } from "../../platform/system-clock.ts";
import type { ExecEvent, ExecExit, ExecSpec, ExecView, RuntimeSpec } from "../../ports/index.ts";
import { MockProvider } from "./index.ts";

const options = {
  /** One for each call. */
  get signal() {
    return AbortSignal.timeout(60_000);
  },
};
const open: MockProvider[] = [];
afterEach(async () => {
  for (const provider of open.splice(0)) await provider[Symbol.asyncDispose]();
});

function provider(maxWorkers = 2): MockProvider {
  const made = new MockProvider({
    config: { defaultImage: "mock", maxWorkers },
    logger: silentLogger,
    clock: systemClock,
  });
  open.push(made);
  return made;
}

function runtimeSpec(change: Partial<RuntimeSpec> = {}): RuntimeSpec {
  return {
    runtimeId: randomIds.runtimeId(),
    sandboxId: randomIds.sandboxId(),
    image: "mock",
    memoryMb: 64,
    vcpus: 1,
    env: {},
    expiresInMs: null,
    metadata: {},
    ...change,
  };
}

function execSpec(command: string, change: Partial<ExecSpec> = {}): ExecSpec {
  return {
    execId: randomIds.execId(),
    command,
    args: [],
    argv: ["/bin/sh", "-c", command],
    env: {},
    stdin: false,
    timeoutMs: 30_000,
    detached: false,
    ...change,
  };
}

async function spawned(provider: MockProvider, change: Partial<RuntimeSpec> = {}) {
  const spec = runtimeSpec(change);
  await provider.spawn(spec, options);
  return { spec, ...provider.sandbox(spec.runtimeId), operations: provider.sandbox(spec.runtimeId) };
}

async function collect(
  view: ExecView,
): Promise<{ stdout: string; stderr: string; exit: ExecExit | undefined }> {
  const chunks = { stdout: [] as Buffer[], stderr: [] as Buffer[] };
  let exit: ExecExit | undefined;
  for await (const event of view.events as AsyncIterable<ExecEvent>) {
    if (event.type === "output") chunks[event.stream].push(event.data);
    else exit = event.exit;
  }
  return {
    stdout: Buffer.concat(chunks.stdout).toString(),
    stderr: Buffer.concat(chunks.stderr).toString(),
    exit,
  };
}

describe("commands of the mock provider", () => {
  it("run with output on both streams, an exit code, environment and working directory", async () => {
    const { execs } = await spawned(provider(), { env: { FROM: "sandbox" } });
    const command = "pwd; echo $FROM $OWN; echo oops >&2; echo é | cat; (echo sub) 2>&1; exit 3";
    const result = await collect(await execs.start(execSpec(command, { env: { OWN: "exec" } }), options));
    expect(result).toMatchObject({
      stdout: "/workspace\nsandbox exec\né\nsub\n",
      stderr: "oops\n",
      exit: { exitCode: 3, reason: "exited" },
    });
  });

  it("send output as it is written", async () => {
    const { execs } = await spawned(provider());
    const view = await execs.start(execSpec("echo first; sleep 30; echo never"), options);
    for await (const event of view.events) {
      expect(event).toMatchObject({ type: "output", stream: "stdout" });
      break;
    }
    const record = await execs.kill(view.execId, { ...options, reason: "cancelled" });
    expect(record.exit).toMatchObject({ reason: "cancelled", exitCode: 137 });
  });

  it("are stopped at their deadline even in an endless loop, and the sandbox keeps its files", async () => {
    const { execs, files } = await spawned(provider(1));
    await collect(await execs.start(execSpec("echo kept > /workspace/file"), options));
    const bystander = await execs.start(execSpec("sleep 2; echo done"), options);
    const loop = await collect(
      await execs.start(execSpec("while true; do :; done", { timeoutMs: 300 }), options),
    );
    expect(loop.exit).toMatchObject({ reason: "timeout", exitCode: 137 });
    expect((await collect(bystander)).stdout).toBe("done\n");
    expect((await files.stat("/workspace/file", options)).size).toBe(5);
    expect((await collect(await execs.start(execSpec("cat file"), options))).stdout).toBe("kept\n");
  });

  it("read standard input once it is closed", async () => {
    const { execs } = await spawned(provider());
    const view = await execs.start(execSpec("cat | tr a-z A-Z", { stdin: true }), options);
    await view.writeStdin(Buffer.from("hello "));
    await view.writeStdin(Buffer.from("there"));
    await view.closeStdin();
    expect((await collect(view)).stdout).toBe("HELLO THERE");
  });

  it("do not wait for standard input that they do not read", async () => {
    const { execs } = await spawned(provider());
    const view = await execs.start(execSpec("echo hi; cat /etc/hostname", { stdin: true }), options);
    expect((await collect(view)).stdout).toBe("hi\nmock\n");
  });

  it("that ask for a terminal are refused, naming the capability", async () => {
    const { execs } = await spawned(provider());
    const asked = execs.start(execSpec("sh", { tty: { cols: 80, rows: 24 } }), options);
    await expect(asked).rejects.toMatchObject({
      code: "bad_request",
      message: expect.stringContaining('"pty"'),
    });
  });

  it("that are not there end with 127 and say so", async () => {
    const { execs } = await spawned(provider());
    const view = await execs.start(execSpec("nope", { argv: ["nope"] }), options);
    const { stderr, exit } = await collect(view);
    expect(exit).toMatchObject({ exitCode: 127, startError: expect.stringContaining("nope") });
    expect(stderr).toContain("nope");
  });

  it("can be attached to again, from any offset that is kept", async () => {
    const { execs } = await spawned(provider());
    const spec = execSpec("printf 0123456789", { detached: true });
    await collect(await execs.start(spec, options));
    const view = await execs.attach(spec.execId, { ...options, from: 4, follow: true, lossless: true });
    expect(await collect(view)).toMatchObject({ stdout: "456789", exit: { outputBytes: 10 } });
  });

  it("wait for a slow reader and lose nothing", async () => {
    const { execs } = await spawned(provider(), { metadata: { "mock.output_bytes": "20000000" } });
    const view = await execs.start(execSpec("anything"), options);
    let bytes = 0;
    for await (const event of view.events) if (event.type === "output") bytes += event.data.length;
    expect(bytes).toBe(20_000_000);
  });

  it("leave their worker to the others when the sandbox is destroyed", async () => {
    const mock = provider(1);
    const first = await spawned(mock);
    const second = await spawned(mock);
    const view = await first.execs.start(execSpec("while :; do :; done"), options);
    await mock.destroy(first.spec.runtimeId, options);
    const events: ExecEvent[] = [];
    for await (const event of view.events) events.push(event);
    expect(events).toEqual([]);
    expect((await collect(await second.execs.start(execSpec("echo alive"), options))).stdout).toBe("alive\n");
  });
});

describe("output that nobody reads", () => {
  it("is bounded for all ended commands of a sandbox together", async () => {
    const { execs } = await spawned(provider(), { metadata: { "mock.output_bytes": "2000000" } });
    for (let count = 0; count < 20; count += 1)
      await collect(await execs.start(execSpec("anything"), options));
    const kept = (await execs.list(options)).map((exec) => exec.outputBytes - exec.firstOffset);
    expect(kept.reduce((sum, bytes) => sum + bytes, 0)).toBeLessThanOrEqual(16 * 1_048_576);
    expect(kept.at(-1)).toBeGreaterThan(500_000);
  });
});

describe("files of the mock provider", () => {
  it("beyond its disk are refused as by providers that have one", async () => {
    const { files } = await spawned(provider());
    const more = Readable.from(Array.from({ length: 130 }, () => Buffer.alloc(1_048_576)));
    await expect(files.write("/workspace/large", more, options)).rejects.toMatchObject({
      code: "resource_limit",
      details: { reason: "disk" },
    });
  });

  it("are shared with commands", async () => {
    const { execs, files } = await spawned(provider());
    const written = await files.write("/workspace/deep/er/file", bytes("content"), {
      ...options,
      mode: 0o600,
    });
    expect(written).toMatchObject({ size: 7, mode: 0o600, type: "file", path: "/workspace/deep/er/file" });
    const { stdout } = await collect(
      await execs.start(execSpec("cat deep/er/file; echo new > made"), options),
    );
    expect(stdout).toBe("content");
    const { body } = await files.read("/workspace/made", options);
    expect(Buffer.concat(await body.toArray()).toString()).toBe("new\n");
  });

  it("survive a round trip through a tar", async () => {
    const { files, execs } = await spawned(provider());
    const name = `${"long".repeat(40)}.txt`;
    await files.write(`/workspace/a/${name}`, bytes("x".repeat(1_000)), options);
    await collect(await execs.start(execSpec("ln -s target a/link; mkdir a/empty"), options));
    const tar = Buffer.concat(await (await files.archive("/workspace/a", options)).toArray());
    await files.mkdir("/workspace/b", { ...options, parents: false });
    await files.unpack("/workspace/b", bytes(tar), options);
    const entries = await files.list("/workspace/b", { ...options, depth: 5 });
    expect(entries.map((entry) => [entry.name, entry.type, entry.size > 0])).toEqual([
      ["empty", "dir", false],
      ["link", "symlink", true],
      [name, "file", true],
    ]);
  });
});

describe("the mock provider", () => {
  it("does what metadata says", async () => {
    const mock = provider();
    const spawnError = runtimeSpec({ metadata: { "mock.spawn_error": "unavailable: not today" } });
    await expect(mock.spawn(spawnError, options)).rejects.toMatchObject({
      code: "unavailable",
      message: "not today",
    });
    const { spec } = await spawned(mock, { metadata: { "mock.destroy_failures": "2" } });
    await expect(mock.destroy(spec.runtimeId, options)).rejects.toMatchObject({ code: "provider_error" });
    await expect(mock.destroy(spec.runtimeId, options)).rejects.toMatchObject({ code: "provider_error" });
    await mock.destroy(spec.runtimeId, options);
    expect(await mock.inventory(options)).toEqual([]);
  });

  it("refuses metadata it does not know", async () => {
    const wrong = runtimeSpec({ metadata: { "mock.spawn_dealy": "1s" } });
    await expect(provider().spawn(wrong, options)).rejects.toMatchObject({ code: "bad_request" });
  });

  it("spawns and destroys in well under 0.3 ms", async () => {
    const mock = provider();
    const started = process.cpuUsage();
    for (let count = 0; count < 5_000; count += 1) {
      const spec = runtimeSpec({ expiresInMs: 60_000 });
      await mock.spawn(spec, options);
      await mock.destroy(spec.runtimeId, options);
    }
    const used = process.cpuUsage(started);
    expect((used.user + used.system) / 1_000 / 5_000).toBeLessThan(0.3);
  });

  it("ends a sandbox at its expiry and says so", async () => {
    const mock = provider();
    const ended = Promise.withResolvers<string>();
    mock.onExit((_id, reason) => ended.resolve(reason));
    await spawned(mock, { expiresInMs: 20 });
    expect(await ended.promise).toContain("expiry");
    expect(await mock.inventory(options)).toEqual([]);
  });
});

async function* bytes(content: string | Buffer): AsyncGenerator<Uint8Array> {
  yield typeof content === "string" ? Buffer.from(content) : content;
}
