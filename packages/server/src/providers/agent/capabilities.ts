import type { Capability } from "@alcove/wire";

/** What a sandbox with an agent in it can, whatever it runs on. */
export const agentCapabilities: readonly Capability[] = [
  "spawn",
  "exec",
  "exec_stream",
  "files",
  "console",
  "health",
  "runtime_inventory",
  "pty",
  "signals",
  "reattach",
  "watch",
  "ports",
  "stats",
  "process_tree",
  "special_files",
  "adopt",
  "images",
  "pty_eof",
  "pty_interrupt",
  "file_modes",
  "exec_usage",
  "archives",
];
