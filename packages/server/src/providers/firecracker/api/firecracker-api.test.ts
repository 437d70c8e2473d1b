import { type ChildProcess, spawn } from "node:child_process";
import { once } from "node:events";
import { existsSync } from "node:fs";
import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { connect } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import type { Behaviour } from "../../../../test/support/firecracker/behaviour.ts";
import { fakeFirecracker } from "../../../../test/support/firecracker/fake-binary.ts";
import { eventually } from "../../../../test/support/http.ts";
import { ProviderError, Unavailable } from "../../../ports/index.ts";
import { FirecrackerApi } from "./firecracker-api.ts";

const options = () => ({ signal: AbortSignal.timeout(10_000) });

let folder: string;
let fake: ReturnType<typeof fakeFirecracker>;
const children: ChildProcess[] = [];
const apis: FirecrackerApi[] = [];

beforeEach(async () => {
  folder = await mkdtemp(join(tmpdir(), "alcove-fc-api-"));
  fake = fakeFirecracker(folder, { guest: "none" });
  await writeFile(join(folder, "root.img"), "a disk");
});
afterEach(async () => {
  for (const api of apis.splice(0)) api[Symbol.dispose]();
  for (const child of children.splice(0)) {
    if (child.exitCode !== null || child.signalCode !== null) continue;
    const exit = once(child, "exit");
    child.kill("SIGKILL");
    await exit;
  }
  await rm(folder, { recursive: true, force: true });
});

/** A process of the fake, in the folder, and a client of it. */
async function started(name = "a", behaviour: Partial<Behaviour> = {}): Promise<FirecrackerApi> {
  fake.behave(behaviour);
  const child = spawn(fake.path, ["--api-sock", `${name}.sock`, "--id", name], {
    cwd: folder,
    stdio: "ignore",
  });
  children.push(child);
  const socketPath = join(folder, `${name}.sock`);
  // The file is there a moment before somebody listens.
  await eventually(() => connects(socketPath));
  const api = new FirecrackerApi({ socketPath, patience: { call: 2_000, start: 2_000 } });
  apis.push(api);
  return api;
}

async function connects(socketPath: string): Promise<true | undefined> {
  const socket = connect(socketPath);
  try {
    await once(socket, "connect");
    return true;
  } catch {
    return undefined;
  } finally {
    socket.destroy();
  }
}

const root = { drive_id: "root", path_on_host: "root.img", is_root_device: true, is_read_only: true };

describe("FirecrackerApi", () => {
  it("sets a machine up, starts it, and tells its state", async () => {
    const api = await started();
    expect(await api.instance(options())).toMatchObject({ id: "a", state: "Not started" });
    await api.setMachineConfig({ vcpu_count: 2, mem_size_mib: 256 }, options());
    await api.setBootSource({ kernel_image_path: fake.kernel, boot_args: "quiet -- init" }, options());
    const rate_limiter = {
      bandwidth: { size: 1_000_000, refill_time: 100 },
      ops: { size: 10, refill_time: 1 },
    };
    await api.setDrive({ ...root, rate_limiter }, options());
    await api.setVsock({ guest_cid: 3, uds_path: "v.sock" }, options());
    await api.setEntropy({}, options());
    await api.setNetworkInterface({ iface_id: "eth0", host_dev_name: "tap0" }, options());
    await api.setLogger({ level: "Warning" }, options());
    await api.setMetrics({ metrics_path: "metrics" }, options());
    await api.start(options());
    expect(await api.instance(options())).toMatchObject({ state: "Running" });
    expect(existsSync(join(folder, "v.sock"))).toBe(true);
  });

  it("makes a snapshot of a paused machine, which only a process without settings loads", async () => {
    const api = await started();
    await api.setBootSource({ kernel_image_path: fake.kernel }, options());
    await api.setDrive(root, options());
    await api.start(options());
    const files = { snapshot_path: "state", mem_file_path: "memory" };
    await expect(api.createSnapshot(files, options())).rejects.toThrow(
      /PUT \/snapshot\/create with status 400/,
    );
    await api.pause(options());
    await api.createSnapshot(files, options());
    await api.resume(options());
    const backend = { backend_type: "File", backend_path: "memory" } as const;
    const load = { snapshot_path: "state", mem_backend: backend, resume_vm: true };
    const touched = await started("b");
    await touched.setMachineConfig({ vcpu_count: 1, mem_size_mib: 128 }, options());
    await expect(touched.loadSnapshot(load, options())).rejects.toThrow(ProviderError);
    const fresh = await started("c");
    await fresh.loadSnapshot(load, options());
    expect(await fresh.instance(options())).toMatchObject({ id: "c", state: "Running" });
  });

  it("names the request and the status of a refusal, and keeps what was said for the log", async () => {
    const api = await started();
    const missing = { kernel_image_path: "/no/such/kernel" };
    const failure = await api.setBootSource(missing, options()).catch((error: unknown) => error);
    expect(failure).toBeInstanceOf(ProviderError);
    expect(failure).toMatchObject({
      message: "Firecracker refused PUT /boot-source with status 400; what it said is in the service's log",
      cause: { status: 400, message: expect.stringContaining("/no/such/kernel") },
    });
    await expect(api.pause(options())).rejects.toThrow(/PATCH \/vm with status 400/);
    await expect(api.start(options())).rejects.toThrow(/PUT \/actions with status 400/);
  });

  it("refuses answers that are none: too long, of another status, no JSON", async () => {
    const html = { status: 200, text: "<html>busy</html>" };
    const api = await started("a", {
      answers: {
        "GET /": html,
        "PUT /vsock": html,
        "PUT /entropy": { status: 400, text: "x".repeat(100_000) },
        "PATCH /vm": { status: 502, text: "<html>bad gateway</html>" },
      },
    });
    await expect(api.instance(options())).rejects.toThrow(/GET \/ is unfit: it is no JSON/);
    await expect(api.setVsock({ guest_cid: 3, uds_path: "v" }, options())).rejects.toThrow(
      /PUT \/vsock is unfit: its status is 200/,
    );
    await expect(api.setEntropy({}, options())).rejects.toThrow(/longer than 65536 bytes/);
    await expect(api.pause(options())).rejects.toMatchObject({
      message: expect.stringMatching(/PATCH \/vm with status 502/),
      cause: { message: expect.stringContaining("bad gateway") },
    });
    await api.setBootSource({ kernel_image_path: fake.kernel }, options());
  });

  it("gives a process that hangs its time, and says of one that has died that it has ended", async () => {
    const api = await started("a", { hangs: ["PUT /entropy", "PUT /vsock"], dies: ["PUT /actions"] });
    await expect(api.setEntropy({}, options())).rejects.toThrow(/PUT \/entropy: it took more than 2 s/);
    const reason = new Error("not wanted any more");
    const stop = new AbortController();
    const asked = api.setVsock({ guest_cid: 3, uds_path: "v" }, { signal: stop.signal });
    stop.abort(reason);
    await expect(asked).rejects.toBe(reason);
    await expect(api.start(options())).rejects.toThrow(/PUT \/actions: its process has ended/);
    await expect(api.instance(options())).rejects.toThrow(Unavailable);
  });
});
