import { randomBytes } from "node:crypto";
import type { NetworkMode, RuntimeSpec } from "../../ports/index.ts";
import {
  type CgroupSpec,
  type IdsSpec,
  type LaunchSpec,
  type OutboundConfig,
  outboundSpec,
} from "../launcher/index.ts";
import { noteOf } from "../runtime-records/index.ts";
import type { RuntimeRecord } from "./runtime-record.ts";

export interface NativeProviderConfig extends OutboundConfig {
  defaultImage: string;
  networkMode: NetworkMode;
  uidBase: number;
  pidsLimit: number;
  diskMb: number;
  minFreeMb: number;
  /** Of the machine's memory; 0: no guard. */
  maxUncountedPercent: number;
  addedCaps: readonly string[];
  /** Sandboxes made ahead, for each image and network mode. */
  prepared: number;
}

/** What is written down of a runtime before it exists, with a token of its own. */
export function newRecord(
  spec: RuntimeSpec,
  options: { instanceId: string; root: LaunchSpec["root"]; ids: IdsSpec; cgroup: CgroupSpec | null },
): RuntimeRecord {
  return {
    version: 1,
    instanceId: options.instanceId,
    runtimeId: spec.runtimeId,
    sandboxId: spec.sandboxId,
    token: randomBytes(32).toString("hex"),
    image: spec.image,
    rootfs: options.root.kind === "image" ? options.root.rootfs : null,
    ids: options.ids,
    cgroup: options.cgroup,
    createdAt: new Date().toISOString(),
    sandbox: noteOf(spec),
  };
}

/** A request can only tighten what is configured; that it does is looked at before. */
export function networkOf(spec: RuntimeSpec, config: NativeProviderConfig): NetworkMode {
  return spec.network ?? config.networkMode;
}

export function newLaunchSpec(
  spec: RuntimeSpec,
  options: {
    config: NativeProviderConfig;
    dir: string;
    record: RuntimeRecord;
    agent: string;
    root: LaunchSpec["root"];
    disk: LaunchSpec["disk"];
    procOutside: boolean;
    /** Path of slirp4netns; needed for network mode `outbound` alone. */
    slirp?: string;
  },
): LaunchSpec {
  const { config, record } = options;
  return {
    dir: options.dir,
    record,
    agent: options.agent,
    root: options.root,
    ids: record.ids,
    hostname: spec.sandboxId,
    network: networkOf(spec, config),
    ...(options.slirp === undefined ? {} : { outbound: outboundSpec(config, options.slirp) }),
    cgroup: record.cgroup,
    limits: { memory_mb: spec.memoryMb, vcpus: spec.vcpus, pids: config.pidsLimit, exec_group: true },
    added_caps: config.addedCaps,
    disk: options.disk,
    proc_outside: options.procOutside,
  };
}
