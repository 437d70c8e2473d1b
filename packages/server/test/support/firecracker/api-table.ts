/**
 * What Firecracker's API takes, of which the fake refuses everything else. `api-table.test.ts` compares it with the published
 * OpenAPI description (src/firecracker/swagger/firecracker.yaml) when ALCOVE_FIRECRACKER_OPENAPI names that file.
 */
export type FieldType =
  | "string"
  | "integer"
  | "boolean"
  | { oneOf: readonly string[] }
  | { integer: { min?: number; max?: number } }
  | { object: Fields }
  | { list: Fields | "string" }
  | { texts: true };

/** A `!` behind the name: it must be there. */
export type Fields = { readonly [name: string]: FieldType };

/** When a request is taken: any setting makes a process unfit to load a snapshot. */
export type Phase = "any" | "before start" | "after start" | "fresh";

export interface Request {
  phase: Phase;
  /** Absent: it has none. */
  body?: Fields;
  /** Setting it leaves the process fit to load a snapshot. */
  harmless?: true;
}

const amount = { integer: { min: 0 } } as const;
const bucket = { object: { "size!": amount, "refill_time!": amount, one_time_burst: amount } } as const;
const limiter = { object: { bandwidth: bucket, ops: bucket } } as const;

export const apiTable: Readonly<Record<string, Request>> = {
  "GET /": { phase: "any" },
  "GET /version": { phase: "any" },
  "GET /machine-config": { phase: "any" },
  "PUT /machine-config": {
    phase: "before start",
    body: {
      "vcpu_count!": { integer: { min: 1, max: 32 } },
      "mem_size_mib!": "integer",
      smt: "boolean",
      track_dirty_pages: "boolean",
      cpu_template: { oneOf: ["C3", "T2", "T2S", "T2CL", "T2A", "V1N1", "None"] },
      huge_pages: { oneOf: ["None", "Transparent", "2M"] },
    },
  },
  "PUT /boot-source": {
    phase: "before start",
    body: { "kernel_image_path!": "string", initrd_path: "string", boot_args: "string" },
  },
  "PUT /drives/{drive_id}": {
    phase: "before start",
    body: {
      "drive_id!": "string",
      "is_root_device!": "boolean",
      is_read_only: "boolean",
      path_on_host: "string",
      partuuid: "string",
      socket: "string",
      cache_type: { oneOf: ["Unsafe", "Writeback"] },
      io_engine: { oneOf: ["Sync", "Async"] },
      rate_limiter: limiter,
    },
  },
  "PUT /vsock": {
    phase: "before start",
    body: { "guest_cid!": { integer: { min: 3 } }, "uds_path!": "string", vsock_id: "string" },
  },
  "PUT /entropy": { phase: "before start", body: { rate_limiter: limiter } },
  "PUT /network-interfaces/{iface_id}": {
    phase: "before start",
    body: {
      "iface_id!": "string",
      "host_dev_name!": "string",
      guest_mac: "string",
      mtu: { integer: { min: 68, max: 65535 } },
      rx_rate_limiter: limiter,
      tx_rate_limiter: limiter,
    },
  },
  "PUT /logger": {
    phase: "before start",
    harmless: true,
    body: {
      log_path: "string",
      level: { oneOf: ["Error", "Warning", "Info", "Debug", "Trace", "Off"] },
      show_level: "boolean",
      show_log_origin: "boolean",
      module: "string",
    },
  },
  "PUT /metrics": {
    phase: "before start",
    harmless: true,
    body: { "metrics_path!": "string", emit_id: "boolean", properties: { texts: true } },
  },
  "PUT /actions": {
    phase: "any",
    harmless: true,
    body: { "action_type!": { oneOf: ["FlushMetrics", "InstanceStart", "SendCtrlAltDel"] } },
  },
  "PATCH /vm": { phase: "after start", body: { "state!": { oneOf: ["Paused", "Resumed"] } } },
  "PUT /snapshot/create": {
    phase: "after start",
    body: {
      "snapshot_path!": "string",
      "mem_file_path!": "string",
      snapshot_type: { oneOf: ["Full", "Diff"] },
    },
  },
  "PUT /snapshot/load": {
    phase: "fresh",
    body: {
      "snapshot_path!": "string",
      mem_file_path: "string",
      mem_backend: {
        object: { "backend_type!": { oneOf: ["File", "Uffd"] }, "backend_path!": "string" },
      },
      enable_diff_snapshots: "boolean",
      track_dirty_pages: "boolean",
      resume_vm: "boolean",
      network_overrides: { list: { "iface_id!": "string", "host_dev_name!": "string" } },
      vsock_override: { object: { "uds_path!": "string" } },
      clock_realtime: "boolean",
      huge_pages: { oneOf: ["Snapshot", "None", "Transparent", "2M"] },
    },
  },
};

/** @returns why Firecracker would not take a body; undefined when it would. */
export function unfitBody(fields: Fields, body: unknown, at = ""): string | undefined {
  if (typeof body !== "object" || body === null || Array.isArray(body))
    return `invalid type at ${at || "the body"}: an object is expected`;
  const known = new Map(Object.entries(fields).map(([name, type]) => [name.replace("!", ""), type]));
  for (const [name, value] of Object.entries(body)) {
    const type = known.get(name);
    if (type === undefined) return `unknown field \`${at}${name}\``;
    const why = unfitValue(type, value, `${at}${name}`);
    if (why !== undefined) return why;
  }
  for (const name of Object.keys(fields))
    if (name.endsWith("!") && !(name.slice(0, -1) in body))
      return `missing field \`${at}${name.slice(0, -1)}\``;
  return undefined;
}

function unfitValue(type: FieldType, value: unknown, at: string): string | undefined {
  const wrong = (wanted: string) =>
    `invalid value ${JSON.stringify(value)} of \`${at}\`: ${wanted} is expected`;
  if (type === "integer") return Number.isSafeInteger(value) ? undefined : wrong("an integer");
  if (typeof type === "string") return typeof value === type ? undefined : wrong(type);
  if ("oneOf" in type)
    return typeof value === "string" && type.oneOf.includes(value) ? undefined : wrong(type.oneOf.join(", "));
  if ("integer" in type) {
    const { min = -Infinity, max = Infinity } = type.integer;
    const fits = Number.isSafeInteger(value) && Number(value) >= min && Number(value) <= max;
    return fits ? undefined : wrong(`an integer from ${min} to ${max}`);
  }
  if ("object" in type) return unfitBody(type.object, value, `${at}.`);
  if ("texts" in type) {
    const texts = typeof value === "object" && value !== null ? Object.values(value) : [0];
    return texts.every((text) => typeof text === "string") ? undefined : wrong("an object of strings");
  }
  if (!Array.isArray(value)) return wrong("a list");
  for (const [index, item] of value.entries()) {
    const inside = `${at}[${index}]`;
    const why =
      type.list === "string" ? unfitValue("string", item, inside) : unfitBody(type.list, item, `${inside}.`);
    if (why !== undefined) return why;
  }
  return undefined;
}
