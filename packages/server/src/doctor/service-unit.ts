import { execFile } from "node:child_process";
import { promisify } from "node:util";

const askMs = 2_000;

/** What systemd says of a unit; undefined where nobody answers. */
export type ShowUnit = (unit: string) => Promise<string | undefined>;

const systemctl: ShowUnit = async (unit) => {
  try {
    const { stdout } = await promisify(execFile)(
      "systemctl",
      ["show", "--property=LoadState,KillMode", "--", unit],
      { timeout: askMs },
    );
    return stdout;
  } catch {
    // Not there, or no bus to ask: nothing is known then.
    return undefined;
  }
};

/**
 * Whether a stop of systemd's would end the sandboxes with the service.
 * @param options.cgroup of the process, as `/proc/self/cgroup` has it.
 * @param options.otherwise the unit to look at when this process is in none.
 * @returns what to tell; undefined when there is nothing.
 */
export async function stopEndsSandboxes(options: {
  cgroup: string;
  otherwise?: string;
  show?: ShowUnit;
}): Promise<string | undefined> {
  const own = unitOf(options.cgroup);
  const unit = own ?? options.otherwise;
  if (unit === undefined) return undefined;
  const shown = await (options.show ?? systemctl)(unit);
  if (shown === undefined && own === undefined) return undefined;
  if (own === undefined && !shown?.includes("LoadState=loaded")) return undefined;
  const killMode = /^KillMode=(.+)$/m.exec(shown ?? "")?.[1];
  if (killMode === "process" || killMode === "none") return undefined;
  return killMode === undefined
    ? `this service runs in ${unit}; unless that has KillMode=process, a stop or restart ends every sandbox with it`
    : `${unit} has KillMode=${killMode}: a stop or restart of it ends every sandbox as well`;
}

/** The service unit whose processes are ended together with this one; a scope is none. */
function unitOf(cgroup: string): string | undefined {
  const paths = cgroup
    .split("\n")
    .filter((line) => line.startsWith("0::") || line.includes(":name=systemd:"))
    .map((line) => line.split(":").slice(2).join(":"));
  for (const path of paths) {
    const unit = path.split("/").findLast((name) => /\.(service|scope)$/.test(name));
    if (unit?.endsWith(".service")) return unit;
  }
  return undefined;
}

export const unitAdvice =
  "use deploy/alcove.service, or add KillMode=process and Delegate=yes to it (systemctl edit); docs/operations/install.md";
