import type { ServerResponse } from "node:http";

/** Writes and waits until the reader has taken enough. @throws Error when the reader is gone. */
export async function writeOut(response: ServerResponse, data: Uint8Array): Promise<void> {
  if (response.destroyed) throw new Error("the reader is gone");
  if (response.write(data)) return;
  await new Promise<void>((resolve) => {
    const settle = () => {
      response.off("drain", settle).off("close", settle);
      resolve();
    };
    response.once("drain", settle).once("close", settle);
  });
  if (response.destroyed) throw new Error("the reader is gone");
}
