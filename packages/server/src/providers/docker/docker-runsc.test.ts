import { afterAll, beforeAll, expect, it } from "vitest";
import { sharedEngine } from "../../../test/support/docker-engine.ts";
import { type DockerUnderTest, openDocker } from "../../../test/support/docker-provider.ts";
import { describeWith } from "../../../test/support/requirements.ts";
import { randomIds } from "../../platform/random-ids.ts";
import {
  chunks,
  collect,
  finish,
  readUntil,
  run,
  shell,
  soon,
} from "../../ports/contract/provider/harness.ts";
import { RuntimeGone, type RuntimeSpec, type SandboxOperations } from "../../ports/index.ts";

await describeWith(["docker", "runsc", "agent", "busybox"], "DockerProvider on runsc", () => {
  let docker: DockerUnderTest;
  let spec: RuntimeSpec;
  const sandbox = (): SandboxOperations => docker.provider.sandbox(spec.runtimeId);

  beforeAll(async () => {
    docker = await openDocker(await sharedEngine(), { config: { runtime: "runsc" } });
    spec = {
      runtimeId: randomIds.runtimeId(),
      sandboxId: randomIds.sandboxId(),
      image: docker.image,
      memoryMb: 256,
      vcpus: 1,
      env: { COLOUR: "green" },
      expiresInMs: 600_000,
      metadata: {},
    };
    await docker.provider.spawn(spec, soon(60_000));
  });
  afterAll(async () => {
    await docker.provider.destroy(spec.runtimeId, soon(30_000));
    expect(await docker.provider.inventory(soon())).toEqual([]);
    await docker.close();
  });

  it("check() says that the agent is reached over stdio, and why", async () => {
    const { healthy, notes } = await docker.provider.check(soon());
    expect(healthy).toBe(true);
    expect(notes.join("\n")).toContain("agent over stdio (sockets do not cross into runsc)");
  });

  it("commands run on gVisor's kernel, with environment, user and exit code", async () => {
    const { stdout, exit } = await run(
      sandbox(),
      shell('dmesg | head -3; echo "$COLOUR $(id -u)"; exit 3', { user: "app" }),
    );
    expect(stdout).toContain("gVisor");
    expect(stdout).toContain("green 1000\n");
    expect(exit).toMatchObject({ exitCode: 3, reason: "exited" });
  });

  it("a file of four mebibytes is written and read back unchanged", async () => {
    const contents = Buffer.alloc(4 * 1024 * 1024, "0123456789abcdef");
    await sandbox().files.write("/workspace/big", chunks(contents), soon(60_000));
    const { body } = await sandbox().files.read("/workspace/big", soon(60_000));
    expect((await collect(body)).equals(contents)).toBe(true);
  });

  it("a fast producer's output arrives whole", async () => {
    const { stdout } = await run(sandbox(), "yes 0123456789 | head -c 8000000");
    expect(stdout.length).toBe(8_000_000);
  });

  it("a terminal works", async () => {
    const spec = shell("stty size; read line; echo got $line", { stdin: true, tty: { cols: 91, rows: 17 } });
    await using view = await sandbox().execs.start(spec, soon());
    const { rest } = await readUntil(view, "17 91");
    await view.writeStdin(Buffer.from("x\n"));
    let seen = "";
    for (let next = await rest.next(); !next.done; next = await rest.next()) {
      if (next.value.type === "output") seen += next.value.data.toString();
    }
    expect(seen).toContain("got x");
  });

  it("a timeout kills what a command started", async () => {
    const { exit } = await run(sandbox(), shell("setsid sleep 4711 & sleep 4711", { timeoutMs: 500 }));
    expect(exit.reason).toBe("timeout");
    expect((await run(sandbox(), "ps | grep -c '[s]leep 4711'; true")).stdout).toBe("0\n");
  });

  it("adopt() after a restart finds a command still running", async () => {
    const command = shell("echo before; read line; echo after $line", { detached: true, stdin: true });
    await sandbox().execs.startDetached(command, soon());
    const next = await docker.restart();
    await next.adopt(spec.runtimeId, soon());
    const { execs } = next.sandbox(spec.runtimeId);
    await using view = await execs.attach(command.execId, {
      ...soon(),
      from: 0,
      follow: true,
      lossless: true,
    });
    await view.writeStdin(Buffer.from("restart\n"));
    expect((await finish(view)).stdout).toBe("before\nafter restart\n");
    await next[Symbol.asyncDispose]();
  });

  it("stats() and logs() answer, and a removed runtime is gone", async () => {
    expect((await sandbox().stats(soon())).memoryBytes).toBeGreaterThan(0);
    expect(Array.isArray(await docker.provider.logs(spec.runtimeId, { ...soon(), lines: 5 }))).toBe(true);
    const other = { ...spec, runtimeId: randomIds.runtimeId(), sandboxId: randomIds.sandboxId() };
    await docker.provider.spawn(other, soon(60_000));
    await docker.provider.destroy(other.runtimeId, soon(30_000));
    expect(() => docker.provider.sandbox(other.runtimeId)).toThrow(RuntimeGone);
  });
});
