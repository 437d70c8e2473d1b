import { readFile } from "node:fs/promises";
import { totalmem } from "node:os";

/** What one takes of memory that is counted for whoever asks for it, in bytes. */
const watchBytes = 192;

/**
 * Of what each user of a machine may wait for with epoll (`fs.epoll.max_user_watches`) there should be more than fit into its
 * memory: a program that is refused one more cannot wait for anything new, and Node ends.
 * @returns a number that is enough; undefined where the one that is set is, or nobody says.
 */
export async function enoughEpollWatches({
  memoryBytes = totalmem(),
  read = () => readFile("/proc/sys/fs/epoll/max_user_watches", "utf8"),
}: {
  memoryBytes?: number;
  read?: () => Promise<string>;
} = {}): Promise<number | undefined> {
  const text = await read().catch(() => "");
  const enough = Math.ceil(memoryBytes / watchBytes);
  return /^\d+$/.test(text.trim()) && Number(text) < enough ? enough : undefined;
}
