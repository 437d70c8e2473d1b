import { describe, expect, it } from "vitest";
import type { DockerConfig } from "../../config/config.ts";
import { BadRequest, type RuntimeId, type RuntimeSpec, type SandboxId } from "../../ports/index.ts";
import { commandCapabilities, containerSpec } from "./container-spec.ts";
import { networkFor } from "./network-mode.ts";

const config: DockerConfig = {
  enabled: undefined,
  defaultImage: "alpine:latest",
  socket: "unix:///var/run/docker.sock",
  tlsDir: "",
  runtime: "",
  networkMode: "none",
  networkAllow: [],
  networkConnections: 512,
  networkMbit: 200,
  seccompProfile: "",
  readOnlyRootfs: false,
  pidsLimit: 512,
  diskMb: 10_240,
  minFreeMb: 1_024,
  user: "",
  droppedCaps: ["ALL"],
  addedCaps: [],
  tmpfs: [],
  agentTransport: "auto",
  prepared: 0,
};
const runtime: RuntimeSpec = {
  runtimeId: "rt-1" as RuntimeId,
  sandboxId: "sb-1" as SandboxId,
  image: "alpine",
  memoryMb: 64,
  vcpus: 3,
  env: {},
  expiresInMs: null,
  metadata: {},
};
const specOf = (change: Partial<DockerConfig> = {}, onGvisor = false) =>
  containerSpec({
    instanceId: "one",
    runtime,
    image: "alpine:latest",
    config: { ...config, ...change },
    agent: { mounts: [], tmpfs: { "/.alcove/run": "mode=0700" } },
    seccomp: undefined,
    processors: 2,
    onGvisor,
  });

describe("containerSpec()", () => {
  it("leaves gVisor threads of its own, which the engine counts, for each process", () => {
    expect(specOf({ pidsLimit: 100 }, true)).toMatchObject({ HostConfig: { PidsLimit: 800 } });
  });

  it("is closed by default", () => {
    expect(specOf()).toMatchObject({
      User: "0:0",
      Cmd: [],
      Healthcheck: { Test: ["NONE"] },
      Labels: { "alcove.instance": "one", "alcove.runtime": "rt-1", "alcove.sandbox": "sb-1" },
      HostConfig: {
        CapDrop: ["ALL"],
        CapAdd: ["CHOWN", "DAC_OVERRIDE", "FOWNER", "KILL", "SETGID", "SETUID"],
        SecurityOpt: ["no-new-privileges"],
        Privileged: false,
        Memory: 64 * 1024 * 1024,
        MemorySwap: 64 * 1024 * 1024,
        CpuPeriod: 100_000,
        CpuQuota: 300_000,
        PidsLimit: 512,
        Ulimits: [
          { Name: "core", Soft: 1, Hard: 1 },
          { Name: "nofile", Soft: 4_096, Hard: 4_096 },
          { Name: "memlock", Soft: 65_536, Hard: 65_536 },
        ],
        NetworkMode: "none",
        Mounts: [],
        AutoRemove: false,
      },
    });
  });

  it("hides what engines hide, which its own list takes the place of", () => {
    const { MaskedPaths, ReadonlyPaths } = specOf().HostConfig as Record<string, string[]>;
    expect(MaskedPaths).toEqual(
      expect.arrayContaining([
        ...[
          "acpi",
          "asound",
          "interrupts",
          "kcore",
          "keys",
          "latency_stats",
          "timer_list",
          "timer_stats",
        ].map((name) => `/proc/${name}`),
        ...["/proc/sched_debug", "/proc/scsi", "/sys/firmware", "/sys/devices/virtual/powercap"],
        ...[0, 1].map((number) => `/sys/devices/system/cpu/cpu${number}/thermal_throttle`),
      ]),
    );
    expect(MaskedPaths).not.toContain("/sys/fs");
    expect(ReadonlyPaths).toEqual(
      ["bus", "fs", "irq", "sys", "sysrq-trigger"].map((name) => `/proc/${name}`),
    );
  });

  it("refuses shared tables of the machine, unless the operator named a profile or the kernel is the sandbox's own", () => {
    const filtered = (change: Partial<DockerConfig>) =>
      (specOf(change).Entrypoint as string[]).includes("--filter");
    expect(filtered({})).toBe(true);
    expect(filtered({ runtime: "crun" })).toBe(true);
    expect(filtered({ runtime: "runsc" })).toBe(false);
    expect(filtered({ seccompProfile: "unconfined" })).toBe(false);
  });

  it("leaves namespaces to commands where the operator gives them the capability for it", () => {
    const entry = (addedCaps: string[]) => specOf({ addedCaps }).Entrypoint as string[];
    expect(entry(["cap_sys_admin"])).toContain("--namespaces");
    expect(entry(["all"])).toContain("--namespaces");
    expect(entry(["NET_ADMIN"])).not.toContain("--namespaces");
  });

  it("bounds the sockets for datagrams by the memory", () => {
    const entry = specOf().Entrypoint as string[];
    expect(entry[entry.indexOf("--datagram-sockets") + 1]).toBe("64");
  });

  it("gives added capabilities to the container once and to commands by their full name", () => {
    const change = { addedCaps: ["CAP_NET_RAW", "kill"] };
    expect(specOf(change)).toMatchObject({
      HostConfig: { CapAdd: ["CHOWN", "DAC_OVERRIDE", "FOWNER", "KILL", "SETGID", "SETUID", "NET_RAW"] },
    });
    expect(commandCapabilities({ ...config, ...change })).toEqual(["CAP_NET_RAW", "CAP_KILL"]);
  });

  it("keeps folders writable that a sandbox needs when the image is read-only", () => {
    expect(specOf({ readOnlyRootfs: true, tmpfs: ["/tmp:size=64m", "/cache"] })).toMatchObject({
      HostConfig: {
        ReadonlyRootfs: true,
        Tmpfs: {
          "/tmp": "size=64m",
          "/cache": "",
          "/workspace": expect.any(String),
          "/.alcove/run": "mode=0700",
        },
      },
    });
  });
});

describe("networkFor()", () => {
  it("outbound is given where it, or the host's network, is configured, and a request may do without", () => {
    expect(networkFor("outbound", undefined)).toBe("outbound");
    expect(networkFor("outbound", "outbound")).toBe("outbound");
    expect(networkFor("host", "outbound")).toBe("outbound");
    expect(networkFor("outbound", "none")).toBe("none");
    expect(() => networkFor("outbound", "host")).toThrow(BadRequest);
  });

  it.each(["none", "bridge", "team"])("outbound is refused where %s is configured", (configured) => {
    expect(() => networkFor(configured, "outbound")).toThrow(BadRequest);
    expect(() => networkFor(configured, "outbound")).toThrow(`network_mode is ${configured}`);
  });

  it("lets a request tighten the network and never open it", () => {
    expect(networkFor("none", undefined)).toBe("none");
    expect(networkFor("bridge", undefined)).toBe("bridge");
    expect(networkFor("bridge", "none")).toBe("none");
    expect(networkFor("host", "host")).toBe("host");
    expect(networkFor("host", "none")).toBe("none");
    expect(() => networkFor("team", "host")).toThrow("providers.docker.network_mode is team");
  });
});

it("a container that the relay gives a network has none of the engine's, and asks the relay's helper for names", () => {
  expect(specOf({ networkMode: "outbound" })).toMatchObject({
    HostConfig: { NetworkMode: "none", Dns: ["198.18.255.3"], DnsSearch: ["."] },
  });
  expect(specOf()).not.toHaveProperty("HostConfig.Dns");
});
