import { readFileSync } from "node:fs";
import { join } from "node:path";
import { expect, it } from "vitest";
import { projectRoot } from "../../../test/support/agent-binary.ts";
import type { RuntimeId, RuntimeSpec, SandboxId } from "../../ports/index.ts";
import {
  type AttachSpec,
  type CgroupSpec,
  type ClaimSpec,
  type DestroySpec,
  type DetachSpec,
  type IdsSpec,
  type LaunchSpec,
  type NameSpec,
  outboundSpec,
  type ShiftSpec,
} from "../launcher/index.ts";
import { type NativeProviderConfig, newLaunchSpec } from "./launch-plan.ts";
import type { RuntimeRecord } from "./runtime-record.ts";

// The launcher's tests read the same file: agent/alcove-launch/src/spec.rs.
const fixture: {
  launches: { id: number; spec: LaunchSpec }[];
  prepares: { id: number; spec: LaunchSpec }[];
  claims: { id: number; spec: ClaimSpec }[];
  destroys: { id: number; spec: DestroySpec }[];
  shifts: { id: number; spec: ShiftSpec }[];
  attaches: { id: number; spec: AttachSpec }[];
  detaches: { id: number; spec: DetachSpec }[];
  names: { id: number; spec: NameSpec }[];
} = JSON.parse(readFileSync(join(projectRoot, "agent", "fixtures", "launch.json"), "utf8"));

const config: NativeProviderConfig = {
  defaultImage: "host",
  networkMode: "none",
  networkAllow: ["10.1.2.0/24"],
  networkConnections: 512,
  networkMbit: 200,
  uidBase: 1_879_048_192,
  pidsLimit: 512,
  diskMb: 256,
  minFreeMb: 0,
  maxUncountedPercent: 0,
  addedCaps: ["CAP_CHOWN"],
  prepared: 0,
};
const spec: RuntimeSpec = {
  runtimeId: "rt-1" as RuntimeId,
  sandboxId: "sb-1" as SandboxId,
  image: "busybox",
  memoryMb: 256,
  vcpus: 1.5,
  env: {},
  expiresInMs: null,
  metadata: {},
};
const v1: CgroupSpec = {
  version: 1,
  dirs: [
    { controller: "memory", path: "/sys/fs/cgroup/memory/alcove/rt-1" },
    { controller: "pids", path: "/sys/fs/cgroup/pids/alcove/rt-1" },
  ],
};
const v2: CgroupSpec = { version: 2, dirs: [{ controller: "unified", path: "/sys/fs/cgroup/alcove/rt-1" }] };
const range: IdsSpec = { kind: "range", base: 1_879_048_192, count: 65_536 };
const subids: IdsSpec = { kind: "subids", uid_start: 100_000, gid_start: 200_000, count: 65_536 };
const host: LaunchSpec["root"] = { kind: "host", skeleton: "/data/skeleton" };
const image: LaunchSpec["root"] = { kind: "image", rootfs: "/data/images/busybox/rootfs" };

const copied: LaunchSpec["root"] = {
  kind: "image",
  rootfs: "/data/native/shifted/1879048192/0123",
  shifted: true,
};

function launch(
  change: Partial<RuntimeSpec>,
  parts: {
    root: LaunchSpec["root"];
    ids: IdsSpec;
    cgroup: CgroupSpec | null;
    disk?: LaunchSpec["disk"];
    procOutside?: boolean;
    slirp?: string;
  },
): LaunchSpec {
  const { root, ids, cgroup, disk = {}, procOutside = false, ...slirp } = parts;
  const record: RuntimeRecord = {
    version: 1,
    instanceId: "instance",
    runtimeId: "rt-1",
    sandboxId: "sb-1",
    token: "0".repeat(64),
    image: spec.image,
    rootfs: root.kind === "image" ? root.rootfs : null,
    ids,
    cgroup,
    createdAt: "2026-01-01T00:00:00.000Z",
  };
  const dir = "/data/runtimes/native/rt-1";
  const agent = "/data/agents/0123456789abcdef/alcove-agent";
  return newLaunchSpec(
    { ...spec, ...change },
    { config, dir, record, agent, root, disk, procOutside, ...slirp },
  );
}

it("what the launcher is told is what its tests take", () => {
  const made = [
    launch({}, { root: image, ids: range, cgroup: v1, disk: { template: "/data/templates/256.ext4" } }),
    launch({ network: "host" }, { root: host, ids: subids, cgroup: v2 }),
    launch({}, { root: host, ids: { kind: "single" }, cgroup: null }),
    launch({ network: "outbound" }, { root: image, ids: range, cgroup: v1, slirp: "/usr/bin/slirp4netns" }),
    launch({}, { root: copied, ids: range, cgroup: v1, disk: { tmpfs_mb: 256 }, procOutside: true }),
  ];
  expect(JSON.parse(JSON.stringify(made))).toEqual(fixture.launches.map((request) => request.spec));
});

it("what is prepared and claimed is told as what its tests take", () => {
  const parts = { root: image, ids: range, cgroup: v1, disk: { template: "/data/templates/256.ext4" } };
  const { dir, record, hostname, limits } = launch({}, parts);
  const prepared = "/data/runtimes/native/prepared-1";
  const link = { link: "/run/alcove/id-ranges/1879048192", target: dir };
  const claim: ClaimSpec = { prepared, dir, record, range: link, owned: { hostname, limits } };
  const told = JSON.parse(JSON.stringify([{ ...launch({}, parts), dir: prepared }, claim]));
  expect(told).toEqual([...fixture.prepares, ...fixture.claims].map((request) => request.spec));
});

it("what a copy into a range of ids is told is what its tests take", () => {
  const made: ShiftSpec = {
    from: "/data/images/busybox/rootfs",
    to: "/data/native/shifted/1879048192/0123",
    base: 1_879_048_192,
    count: 65_536,
  };
  expect(fixture.shifts.map((request) => request.spec)).toEqual([made]);
});

it("what a network that is given again is told is what its tests take", () => {
  const outbound = outboundSpec(config, "/usr/bin/slirp4netns");
  const made: AttachSpec = { dir: "/data/runtimes/native/rt-1", ids: range, cgroup: v1, outbound };
  const dir = "/data/runtimes/docker/rt-1";
  const container = { id: "1e7b928b16440a4f3e49ea8d92059fb5257fd986b1537154cb1cac1ecceb1a1f", pid: 321 };
  const ids: IdsSpec = { kind: "range", base: 1_879_000_321, count: 1 };
  const ofContainer: AttachSpec = { dir, ids, cgroup: v1, outbound, container };
  expect(fixture.attaches.map((request) => request.spec)).toEqual([made, ofContainer]);
  const detached: DetachSpec = { dir, cgroup: v1 };
  expect(fixture.detaches.map((request) => request.spec)).toEqual([detached]);
  const named: NameSpec = { container, hostname: "sb-1" };
  expect(fixture.names.map((request) => request.spec)).toEqual([named]);
});

it("what a removal is told is what its tests take", () => {
  const dir = "/data/runtimes/native/rt-1";
  const trash = "/data/runtimes/native/.trash";
  const made: DestroySpec[] = [
    { dir, trash, cgroup: v1, ids: range },
    { dir, trash, cgroup: null, ids: { kind: "single" } },
  ];
  expect(made).toEqual(fixture.destroys.map((request) => request.spec));
});
