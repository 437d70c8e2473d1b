/** Whom the contract is run against: the columns of docs/providers.md. */
export const contractSubjects = [
  "native, rooted",
  "native, rooted, from prepared sandboxes",
  "native, unprivileged",
  "docker on runc",
  "docker on runc, from prepared containers",
  "docker over TCP with TLS",
  "docker on gVisor",
  "docker with userns-remap",
  "docker, rootless engine",
  "docker on Podman's socket",
  "firecracker, guests of QEMU",
  "firecracker, process guests",
  "firecracker, process guests in jails, restored from snapshots",
  "proot",
  "e2b",
  "custom, reference backend",
  "custom, minimal backend",
  "mock",
] as const;
export type ContractSubject = (typeof contractSubjects)[number];
