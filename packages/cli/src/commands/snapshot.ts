import { type ClientFlags, interruptSignal, type JsonFlags, openClient } from "../context.ts";
import { printJson } from "../terminal/output.ts";
import { table } from "../terminal/table.ts";

/** What providers have made of images. */
export async function snapshotList(flags: ClientFlags & JsonFlags): Promise<void> {
  using client = openClient(flags);
  using interrupt = interruptSignal();
  const snapshots = await client.snapshots({ signal: interrupt.signal });
  if (flags.json) return printJson(snapshots);
  process.stdout.write(
    table(
      ["IMAGE", "KERNEL", "PROVIDER", "MB", "CREATED"],
      snapshots.map(({ image, kernel, provider, size_bytes, created_at }) => [
        image,
        kernel,
        provider,
        String(Math.ceil(size_bytes / 1_048_576)),
        created_at,
      ]),
    ),
  );
}
