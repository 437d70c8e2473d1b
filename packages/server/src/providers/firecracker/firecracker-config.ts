export interface FirecrackerConfig {
  defaultImage: string;
  firecrackerPath: string;
  /** Empty: Firecracker runs as the service's user, unconfined but for its own filters. */
  jailerPath: string;
  /** The group of all jails; the users of jails follow it. */
  jailUidBase: number;
  kernelPath: string;
  /** Empty: none. */
  initrdPath: string;
  /** Of root file systems and machines; empty: `<data_dir>/firecracker`. */
  dataDir: string;
  /** Taps of machines with a network, each `TAP ADDRESS/LENGTH GATEWAY [DNS]`; empty: machines have none. */
  network: readonly string[];
  /** Of a machine, each way; 0: no limit. */
  networkMbit: number;
  /** What a machine may read and write a second of each of its drives; 0: no limit. */
  diskRateMb: number;
  /** Whether machines without a network are restored from memory from the second spawn of an image on. */
  snapshots: boolean;
  /** The size of a machine's writable layer. */
  diskMb: number;
  minFreeMb: number;
  pidsLimit: number;
}
