import { chmodSync, mkdirSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import type { Behaviour } from "./behaviour.ts";

/** A fake `firecracker` that can be started like the program; its machines do as `behave` said last. */
export function fakeFirecracker(
  folder: string,
  initial: Behaviour = { guest: "process" },
): { path: string; jailer: string; kernel: string; behave(change: Partial<Behaviour>): void } {
  mkdirSync(folder, { recursive: true });
  const [path, behaviourPath, kernel] = ["firecracker", "behaviour.json", "vmlinux"].map((name) =>
    join(folder, name),
  ) as [string, string, string];
  const behave = (change: Partial<Behaviour>) =>
    writeFileSync(behaviourPath, JSON.stringify({ ...initial, ...change }));
  behave({});
  writeFileSync(kernel, "\x7fELF: a kernel that nobody boots");
  const program = fileURLToPath(new URL("fake-firecracker.ts", import.meta.url));
  // In the place of the shell, so that the process is the one that was started.
  writeFileSync(path, `#!/bin/sh\nexec '${process.execPath}' '${program}' '${behaviourPath}' "$@"\n`);
  chmodSync(path, 0o755);
  const jailer = fileURLToPath(new URL("fake-jailer.sh", import.meta.url));
  return { path, jailer, kernel, behave };
}
