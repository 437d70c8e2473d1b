import { arch } from "node:os";
import { describe, expect, it } from "vitest";
import { dockerConfig } from "../../../test/support/docker-provider.ts";
import { parseEngineAddress } from "./engine-address.ts";
import { chooseTransport, engineNotes, runsOnGvisor, unfitBecause, watchNotes } from "./engine-facts.ts";
import type { EngineInfo } from "./engine-shapes.ts";

const socket = "unix:///var/run/docker.sock";
const config = dockerConfig({ socket });
const info: EngineInfo = {
  ServerVersion: "27.1.0",
  Runtimes: { runc: { path: "runc" }, gvisor: { path: "/usr/bin/runsc" } },
  DefaultRuntime: "runc",
  SecurityOptions: ["name=seccomp,profile=builtin"],
  Architecture: arch() === "arm64" ? "aarch64" : "x86_64",
  OSType: "linux",
};
const transport = (change: Partial<typeof config>, changed: Partial<EngineInfo> = {}, address = socket) =>
  chooseTransport({ ...config, ...change }, parseEngineAddress(address), { ...info, ...changed }).transport;

describe("chooseTransport()", () => {
  it("takes the socket only where files, users and the kernel are shared", () => {
    expect(transport({})).toBe("socket");
    expect(transport({}, {}, "tcp://10.0.0.1:2375")).toBe("stdio");
    expect(transport({ runtime: "gvisor" })).toBe("stdio");
    expect(transport({ runtime: "io.containerd.kata.v2" })).toBe("stdio");
    expect(transport({}, { DefaultRuntime: "gvisor" })).toBe("stdio");
    expect(transport({}, { SecurityOptions: ["name=userns"] })).toBe("stdio");
    expect(transport({}, { SecurityOptions: ["name=rootless"] })).toBe("stdio");
    expect(transport({}, { OperatingSystem: "Docker Desktop" })).toBe("stdio");
    expect(transport({ agentTransport: "socket" }, {}, "tcp://10.0.0.1:2375")).toBe("socket");
  });
});

it("runsOnGvisor() looks at the runtime's program where the engine says it, else at its name", () => {
  expect(runsOnGvisor(config, undefined)).toBe(false);
  expect(runsOnGvisor({ ...config, runtime: "runsc" }, undefined)).toBe(true);
  expect(runsOnGvisor({ ...config, runtime: "gvisor" }, info)).toBe(true);
  expect(runsOnGvisor(config, { ...info, DefaultRuntime: "gvisor" })).toBe(true);
  expect(runsOnGvisor(config, info)).toBe(false);
  const shims = (runtimeType: string, options?: object) => ({
    ...info,
    Runtimes: { sandboxed: { runtimeType, ...(options && { options }) } },
  });
  const sandboxed = { ...config, runtime: "sandboxed" };
  expect(runsOnGvisor(sandboxed, shims("io.containerd.runsc.v1"))).toBe(true);
  expect(runsOnGvisor(sandboxed, shims("io.containerd.kata.v2"))).toBe(false);
  const binary = { BinaryName: "/usr/bin/runsc" };
  expect(runsOnGvisor(sandboxed, shims("io.containerd.runc.v2", binary))).toBe(true);
});

describe("unfitBecause()", () => {
  it("names what keeps sandboxes from running, and is silent when nothing does", () => {
    expect(unfitBecause(config, info)).toBeUndefined();
    expect(unfitBecause({ ...config, runtime: "kata" }, info)).toContain("it has runc, gvisor");
    expect(unfitBecause({ ...config, runtime: "io.containerd.kata.v2" }, info)).toBeUndefined();
    expect(unfitBecause(config, { ...info, OSType: "windows" })).toContain("windows");
    expect(unfitBecause(config, { ...info, Architecture: "riscv64" })).toContain("riscv64");
  });
});

describe("engineNotes()", () => {
  it("says what is weaker than it should be", () => {
    const kernel = expect.stringContaining("share the host's user ids");
    expect(engineNotes(config, info)).toEqual([kernel]);
    expect(engineNotes({ ...config, runtime: "gvisor" }, info)).toEqual([]);
    for (const networkMode of ["none", "outbound"])
      expect([networkMode, engineNotes({ ...config, networkMode }, info)]).toEqual([networkMode, [kernel]]);
    for (const [networkMode, note] of [
      ["bridge", 'network "bridge" reach private'],
      ["of-ours", 'network "of-ours" reach private'],
      ["host", "share the engine's network"],
    ] as const)
      expect(engineNotes({ ...config, networkMode }, info)).toEqual([kernel, expect.stringContaining(note)]);
    const weak = { ...info, SwapLimit: false, PidsLimit: false, CpuCfsQuota: false, SecurityOptions: [] };
    expect(engineNotes(config, weak)).toHaveLength(5);
    // The agent's own filter knows io_uring; other runtimes have none of it.
    const old = { ...info, ServerVersion: "20.10.24+dfsg1" };
    const other = { ...config, runtime: "youki" };
    expect(engineNotes(config, old)).toEqual([kernel]);
    expect(engineNotes(other, old)).toEqual([expect.stringContaining("io_uring"), kernel]);
    expect(engineNotes(config, { ...info, LiveRestoreEnabled: true })).toEqual([kernel]);
    expect(engineNotes(config, { ...info, LiveRestoreEnabled: false })).toEqual([
      expect.stringContaining('"live-restore": true'),
      kernel,
    ]);
    // Podman's versions are its own, and its containers outlive its service.
    const podman = { ...info, ServerVersion: "4.3.1", BuildahVersion: "1.28.2", LiveRestoreEnabled: false };
    expect(engineNotes(config, podman)).toEqual([kernel]);
    expect(engineNotes(other, podman)).toEqual([expect.stringContaining("Podman's seccomp profile"), kernel]);
    const own = { ...config, seccompProfile: "/etc/profile.json" };
    expect(engineNotes(own, old)).toEqual([kernel]);
  });
});

it("watchNotes() names the setting without which sandboxes end what runs as their user, where there is one", async () => {
  const notes = (change: Partial<typeof config>, changed: Partial<EngineInfo> = {}, address = socket) =>
    watchNotes({ ...config, ...change }, { ...info, ...changed }, parseEngineAddress(address), async () => 7);
  expect(await notes({})).toEqual([
    expect.stringMatching(/this service ends .*sysctl fs\.epoll\.max_user_watches=7$/),
  ]);
  expect(await notes({}, { SecurityOptions: ["name=userns"] })).toEqual([
    expect.stringContaining("in other sandboxes"),
  ]);
  expect(await notes({ runtime: "gvisor" })).toEqual([]);
  expect(await notes({}, {}, "tcp://10.0.0.1:2375")).toEqual([]);
  const enough = async () => undefined;
  expect(await watchNotes(config, info, parseEngineAddress(socket), enough)).toEqual([]);
});
