import { open } from "node:fs/promises";
import { join } from "node:path";
import { orMissing } from "../../platform/missing.ts";

/** Only this much of its end is looked at. */
const consoleTailBytes = 256 * 1024;

/** The last lines of the console in a runtime's folder, newest last. @returns undefined when there is none. */
export async function consoleLines(folder: string, lines: number): Promise<string[] | undefined> {
  const file = await orMissing(open(join(folder, "console.log"), "r"), undefined);
  if (file === undefined) return undefined;
  try {
    const { size } = await file.stat();
    const length = Math.min(size, consoleTailBytes);
    const { buffer, bytesRead } = await file.read(Buffer.alloc(length), 0, length, size - length);
    const found = buffer.toString("utf8", 0, bytesRead).split("\n");
    if (found.at(-1) === "") found.pop();
    if (size > length) found.shift();
    return lines > 0 ? found.slice(-lines) : [];
  } finally {
    await file.close();
  }
}
