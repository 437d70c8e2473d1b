import { type ClientFlags, interruptSignal, type JsonFlags, openClient } from "../context.ts";
import { printJson } from "../terminal/output.ts";
import { table } from "../terminal/table.ts";

/** How many VMs and users the pool holds and may hold. */
export async function poolStatus(flags: ClientFlags & JsonFlags): Promise<void> {
  using client = openClient(flags);
  using interrupt = interruptSignal();
  const status = await client.poolStatus({ signal: interrupt.signal });
  if (flags.json) printJson(status);
  else if (!status.enabled) process.stdout.write("pool mode is off (pool.enabled)\n");
  else {
    process.stdout.write(
      table(
        ["", "HAS", "MAY HAVE"],
        [
          ["VMs", String(status.vms), String(status.max_vms)],
          ["users", String(status.total_users), String(status.max_vms * status.max_users_per_vm)],
        ],
      ),
    );
  }
}
