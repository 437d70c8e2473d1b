import { afterAll, beforeAll, expect, it, vi } from "vitest";
import { type Hosted, hosted, testTemplate } from "../../../test/support/e2b/hosted.ts";
import { describeWith } from "../../../test/support/requirements.ts";
import { randomIds } from "../../platform/random-ids.ts";
import { tarOf } from "../../ports/contract/provider/file-safety-contract.ts";
import { chunks, finish, run, shell, soon } from "../../ports/contract/provider/harness.ts";
import { BadRequest, RuntimeGone, type RuntimeId, type RuntimeSpec } from "../../ports/index.ts";
import type { E2bProvider } from "./index.ts";

const needs = ["linux", "root", "agent", "launcher", "native", "busybox"] as const;

export function specOf(change: Partial<RuntimeSpec> = {}): RuntimeSpec {
  return {
    runtimeId: randomIds.runtimeId(),
    sandboxId: randomIds.sandboxId(),
    image: testTemplate,
    memoryMb: 256,
    vcpus: 1,
    env: {},
    expiresInMs: 600_000,
    metadata: {},
    ...change,
  };
}

await describeWith(needs, "E2bProvider", () => {
  let service: Hosted;
  let provider: E2bProvider;
  const made: RuntimeId[] = [];

  beforeAll(async () => {
    service = await hosted();
    provider = service.open();
  });
  afterAll(async () => {
    for (const runtimeId of made) await provider.destroy(runtimeId, soon());
    await provider[Symbol.asyncDispose]();
    await service.close();
  });

  async function spawn(change: Partial<RuntimeSpec> = {}, on = provider) {
    const spec = specOf(change);
    made.push(spec.runtimeId);
    await on.spawn(spec, soon());
    return { spec, operations: on.sandbox(spec.runtimeId) };
  }

  it("variables of the package's own change nothing", async () => {
    const nonsense = {
      E2B_API_KEY: "wrong",
      E2B_DOMAIN: "elsewhere.invalid",
      E2B_API_URL: "http://127.0.0.1:9",
      E2B_SANDBOX_URL: "http://127.0.0.1:9",
      E2B_DEBUG: "true",
      E2B_USER_AGENT_SOURCE: "ci",
      E2B_API_CONNECTIONS: "many",
      E2B_ENVD_RPC_CONNECTIONS: "many",
    };
    for (const [name, value] of Object.entries(nonsense)) vi.stubEnv(name, value);
    const other = service.open();
    const { spec, operations } = await spawn({}, other);
    for (const [name, value] of Object.entries(nonsense)) vi.stubEnv(name, value);
    expect((await run(operations, "echo here")).stdout).toBe("here\n");
    await other.destroy(spec.runtimeId, soon());
    expect(service.server.sandboxes.map(({ metadata }) => metadata["alcove.runtime"])).not.toContain(
      spec.runtimeId,
    );
    await other[Symbol.asyncDispose]();
    vi.unstubAllEnvs();
  });

  it("a spawn asks what it needs: the sandbox, and its working directory", async () => {
    service.server.seen.length = 0;
    await spawn();
    const asked = service.server.seen.map(({ method, path }) => `${method} ${path}`);
    expect(asked).toEqual(["POST /v2/sandboxes", "POST /filesystem.Filesystem/MakeDir"]);
  });

  it("a second installation on the account sees and ends nothing of the first", async () => {
    const { spec, operations } = await spawn();
    const second = service.open({ instanceId: "installation-2" });
    expect(await second.inventory(soon())).toEqual([]);
    await second.destroy(spec.runtimeId, soon());
    await expect(second.adopt(spec.runtimeId, soon())).rejects.toThrow(RuntimeGone);
    expect((await run(operations, "echo alive")).stdout).toBe("alive\n");
    await second[Symbol.asyncDispose]();
  });

  it("the next start finds a sandbox by its labels, with what was asked for but its environment", async () => {
    const asked = {
      ownerId: "ada",
      name: "seven",
      metadata: { job: "7", "key with spaces & =": "ü" },
      env: { SECRET: "hidden" },
      workdir: "/srv/app",
    };
    const { spec, operations } = await spawn(asked);
    await run(operations, "echo kept > /srv/app/file");
    const next = service.open();
    const entry = (await next.inventory(soon())).find(({ runtimeId }) => runtimeId === spec.runtimeId);
    const { env: _env, ...told } = asked;
    expect(entry).toMatchObject({ sandboxId: spec.sandboxId, state: "running", note: { ...told, env: {} } });
    await next.adopt(spec.runtimeId, soon());
    const again = await run(next.sandbox(spec.runtimeId), 'pwd; cat file; echo "$SECRET"');
    expect(again.stdout).toBe("/srv/app\nkept\nhidden\n");
    await next[Symbol.asyncDispose]();
    expect(JSON.stringify(service.server.sandboxes)).not.toContain("hidden");
  });

  it("adopting makes no life longer, and setExpiry() sets it", async () => {
    const { spec, operations } = await spawn({ expiresInMs: 100_000 });
    const endAt = () =>
      service.server.sandboxes
        .find(({ metadata }) => metadata["alcove.runtime"] === spec.runtimeId)
        ?.endAt.getTime() ?? 0;
    const before = endAt();
    const next = service.open();
    await next.adopt(spec.runtimeId, soon());
    expect(endAt()).toBe(before);
    await next[Symbol.asyncDispose]();
    await operations.setExpiry(200_500, soon());
    expect(Math.round((endAt() - Date.now()) / 1_000)).toBe(201);
    await operations.setExpiry(null, soon());
    expect(Math.round((endAt() - Date.now()) / 1_000)).toBe(86_400);
  });

  it("a sandbox that ends behind the service's back is told, and its calls are RuntimeGone", async () => {
    const { spec, operations } = await spawn();
    const told = Promise.withResolvers<RuntimeId>();
    const stop = provider.onExit((runtimeId) => told.resolve(runtimeId));
    const hostedId = service.server.sandboxes.find(
      ({ metadata }) => metadata["alcove.runtime"] === spec.runtimeId,
    )?.id;
    await service.server.end(hostedId ?? "");
    await expect(operations.files.stat("/workspace", soon())).rejects.toThrow(RuntimeGone);
    expect(await told.promise).toBe(spec.runtimeId);
    expect(() => provider.sandbox(spec.runtimeId)).toThrow(RuntimeGone);
    stop();
  });

  it("the internet is for who asks for it where the configuration allows it, and never where a request forbids it", async () => {
    const created = () =>
      service.server.seen
        .filter(({ method, path }) => method === "POST" && path === "/v2/sandboxes")
        .map(({ body }) => JSON.parse(body).allow_internet_access);
    await spawn();
    expect(created().at(-1)).toBe(false);
    await expect(spawn({ network: "outbound" })).rejects.toThrow(BadRequest);
    const open = service.open({ networkMode: "outbound" });
    await spawn({}, open);
    expect(created().at(-1)).toBe(true);
    await spawn({ network: "none" }, open);
    expect(created().at(-1)).toBe(false);
    await open[Symbol.asyncDispose]();
  });

  it("a kill ends what a command left in other sessions, twice forked and deaf to SIGTERM", async () => {
    const { operations } = await spawn();
    const script =
      "trap '' TERM; setsid sh -c 'trap \"\" TERM; (exec sleep 6171) & wait' >/dev/null 2>&1 & " +
      "(setsid sleep 6172 >/dev/null 2>&1 &); sleep 6173";
    const left = "grep -la 'sleep.617[123]' /proc/[0-9]*/cmdline 2>/dev/null | wc -l";
    const { exit } = await run(operations, shell(script, { timeoutMs: 400 }));
    expect(exit).toMatchObject({ reason: "timeout", exitCode: 137 });
    expect((await run(operations, left)).stdout.trim()).toBe("0");
    const leaving = shell("setsid sleep 6171 >/dev/null 2>&1 & exit 5");
    await run(operations, leaving);
    expect((await run(operations, left)).stdout.trim()).toBe("1");
    await operations.execs.kill(leaving.execId, { ...soon(), reason: "cancelled" });
    expect((await run(operations, left)).stdout.trim()).toBe("0");
  });

  it("users are those of the template, by name", async () => {
    const { operations } = await spawn();
    expect((await run(operations, shell("id -u; echo $HOME >/tmp/by-root", { user: "root" }))).stdout).toBe(
      "0\n",
    );
    await expect(operations.execs.start(shell("true", { user: "1000:1000" }), soon())).rejects.toThrow(
      /is no name.*"users"/,
    );
    await expect(operations.execs.start(shell("true", { user: "stranger" }), soon())).rejects.toThrow(
      'user "stranger" is not known',
    );
  });

  it("a user that the template does not have is a BadRequest that names it, of spawns and files too", async () => {
    const { operations } = await spawn();
    const as = { ...soon(), user: "nobody-here" };
    for (const refused of [
      () => spawn({ user: "nobody-here" }),
      () => operations.files.write("/workspace/file", chunks("x"), as),
      () => operations.files.mkdir("/workspace/folder", { ...as, parents: true }),
    ])
      await expect(refused()).rejects.toEqual(
        new BadRequest('user "nobody-here" is not known in this sandbox'),
      );
  });

  it("a watch tells a file that is written as a write of it, and nothing of what it was before it was whole", async () => {
    const { operations } = await spawn();
    const stop = new AbortController();
    const watched = await operations.files.watch("/workspace", { signal: stop.signal, recursive: false });
    await operations.files.write("/workspace/file", chunks("x"), soon());
    await operations.files.move("/workspace/file", "/workspace/other", soon());
    const told: string[] = [];
    for await (const { type, path } of watched) {
      told.push(`${type} ${path}`);
      if (path.endsWith("other")) break;
    }
    stop.abort();
    expect(told).toEqual(["write /workspace/file", "rename /workspace/file", "rename /workspace/other"]);
  });

  it("what a move cannot replace is a BadRequest, and so is a place below itself", async () => {
    const { files } = (await spawn()).operations;
    await files.write("/workspace/full/file", chunks("x"), soon());
    await files.write("/workspace/plain", chunks("x"), soon());
    for (const [from, to] of [
      ["/workspace/full", "/workspace/plain"],
      ["/workspace/plain", "/workspace/full"],
      ["/workspace/full", "/workspace/full/deep/er"],
    ] as const)
      await expect(files.move(from, to, soon()), `${from} to ${to}`).rejects.toThrow(BadRequest);
  });

  it("what it does not announce answers a BadRequest", async () => {
    const { operations } = await spawn();
    const { execs } = operations;
    await expect(operations.dialPort(80, soon())).rejects.toThrow(BadRequest);
    const limited = shell("true", { limits: { outputBytes: 1 } });
    await expect(execs.start(limited, soon())).rejects.toThrow(BadRequest);
  });

  it("an archive that is none, or reaches outside its folder, is refused and leaves nothing", async () => {
    const { operations } = await spawn();
    const { files } = operations;
    for (const name of ["../escaped", "/escaped", "sub/../../escaped"]) {
      const unpack = files.unpack("/workspace/confined", chunks(tarOf(name, "x")), soon());
      await expect(unpack, name).rejects.toThrow(BadRequest);
    }
    const noTar = chunks("no tar at all");
    await expect(files.unpack("/workspace/confined", noTar, soon())).rejects.toThrow(BadRequest);
    // Behind an entry, before the blocks that end it.
    const cut = tarOf("whole", "x").subarray(0, 1_024);
    await expect(files.unpack("/workspace/confined", chunks(cut), soon())).rejects.toThrow("cut off");
    const left = await run(operations, "ls -A confined; ls -A /tmp; ls -A /workspace; ls -d /escaped");
    expect(left.stdout).toBe("confined\n");
  });

  it("links are told and followed, and a pipe is refused without waiting for it", async () => {
    const { operations } = await spawn();
    const { files } = operations;
    await run(operations, "mkdir ln && echo real >ln/target && ln -s target ln/link && mkfifo ln/pipe");
    expect(await files.stat("/workspace/ln/link", soon())).toMatchObject({ type: "symlink" });
    const followed = await files.stat("/workspace/ln/link", { ...soon(), follow: true });
    expect(followed).toMatchObject({ type: "file", size: 5, path: "/workspace/ln/link" });
    await expect(files.read("/workspace/ln/pipe", soon(3_000))).rejects.toThrow(BadRequest);
    const body = (async function* () {
      yield Buffer.from("changed\n");
    })();
    await files.write("/workspace/ln/link", body, soon());
    expect((await run(operations, "cat ln/target; test -L ln/link && echo still")).stdout).toBe(
      "changed\nstill\n",
    );
  });

  it("a signal that ended a command is told by its name and number", async () => {
    const { operations } = await spawn();
    const view = await operations.execs.start(shell("kill -USR2 $$"), soon());
    expect((await finish(view)).exit).toMatchObject({ reason: "signaled", signal: "SIGUSR2", exitCode: 140 });
  });
});
