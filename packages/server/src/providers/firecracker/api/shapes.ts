/** Tokens for bytes or operations: as many as `size` at once, filled up again within `refill_time` milliseconds. */
export interface TokenBucket {
  size: number;
  refill_time: number;
  one_time_burst?: number;
}

export interface RateLimiter {
  /** Bytes. */
  bandwidth?: TokenBucket;
  ops?: TokenBucket;
}

/** What requests carry, in Firecracker's spelling. Paths are looked up by its process, in its working directory. */
export interface Bodies {
  machineConfig: { vcpu_count: number; mem_size_mib: number; smt?: boolean; track_dirty_pages?: boolean };
  bootSource: { kernel_image_path: string; initrd_path?: string; boot_args?: string };
  drive: {
    drive_id: string;
    path_on_host: string;
    is_root_device: boolean;
    is_read_only: boolean;
    cache_type?: "Unsafe" | "Writeback";
    rate_limiter?: RateLimiter;
  };
  vsock: { guest_cid: number; uds_path: string };
  entropy: { rate_limiter?: RateLimiter };
  networkInterface: {
    iface_id: string;
    host_dev_name: string;
    guest_mac?: string;
    rx_rate_limiter?: RateLimiter;
    tx_rate_limiter?: RateLimiter;
  };
  logger: { log_path?: string; level?: "Error" | "Warning" | "Info" | "Debug" | "Trace" | "Off" };
  metrics: { metrics_path: string };
  snapshotCreate: { snapshot_path: string; mem_file_path: string; snapshot_type?: "Full" | "Diff" };
  snapshotLoad: {
    snapshot_path: string;
    mem_backend: { backend_type: "File" | "Uffd"; backend_path: string };
    resume_vm?: boolean;
    network_overrides?: { iface_id: string; host_dev_name: string }[];
  };
}

export const instanceStates = ["Not started", "Running", "Paused"] as const;

export interface InstanceInfo {
  id: string;
  state: (typeof instanceStates)[number];
  version: string;
}
