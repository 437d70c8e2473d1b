import type { ChildProcess } from "node:child_process";
import { once } from "node:events";

/**
 * The child once it runs, to be asked for in the turn that made it. Until then its pipes may not be there, whatever their
 * types say: Node leaves them out where there is no descriptor for them, and tells why as an error that ends this process
 * where nobody listens.
 * @throws why it could not be started; the signal's reason: a child that was under way has been killed then.
 */
export async function spawned<Child extends ChildProcess>(
  child: Child,
  { signal }: { signal?: AbortSignal | undefined } = {},
): Promise<Child> {
  try {
    await once(child, "spawn");
  } catch (error) {
    signal?.throwIfAborted();
    throw error;
  }
  // Nobody else has listened to it yet.
  if (signal?.aborted) {
    child.kill("SIGKILL");
    await once(child, "exit");
    throw signal.reason;
  }
  return child;
}
