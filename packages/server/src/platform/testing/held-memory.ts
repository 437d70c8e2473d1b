import { setFlagsFromString } from "node:v8";
import { runInNewContext } from "node:vm";

setFlagsFromString("--expose-gc");
const collect: () => void = runInNewContext("gc");

/** @returns what this thread holds, on its heap and outside of it, once what nobody holds was let go of. */
export async function heldBytes(): Promise<number> {
  // What streams and promises still hold for this turn; and what one collection finds for another one to take.
  for (let turn = 0; turn < 3; turn++) {
    await new Promise((resolve) => setImmediate(resolve));
    collect();
  }
  const { heapUsed, external } = process.memoryUsage();
  return heapUsed + external;
}
