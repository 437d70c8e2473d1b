import { readFileSync } from "node:fs";

/** What a fake does that a sound Firecracker does not, and what runs in its machines. Read at each request, so that tests may change it. */
export interface Behaviour {
  /** `process`: the agent as a process of this machine's kernel, in the root that the drive holds. `qemu`: a real guest. `none`: one that never answers. */
  guest: "process" | "qemu" | "none";
  /** Written to the console when the machine starts; with `panics` its last words. */
  says?: string;
  /** The machine ends by itself after its start. */
  panics?: boolean;
  /** Requests that are never answered, such as `PUT /vsock`. */
  hangs?: readonly string[];
  /** Requests at which the process dies. */
  dies?: readonly string[];
  /** Requests that are answered with this, whatever they are. */
  answers?: Readonly<Record<string, { status: number; text: string }>>;
  /** It opens its socket after so many milliseconds. */
  opensAfterMs?: number;
  /** It says this and ends, instead of serving. */
  refusesToRun?: string;
  /** A guest's kernel and initrd, for `qemu`. */
  kernel?: { kernel: string; initrd: string };
}

export function readBehaviour(path: string): Behaviour {
  return JSON.parse(readFileSync(path, "utf8"));
}
