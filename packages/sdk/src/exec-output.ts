/** The bytes of a message or line of output, whatever they were sent as; all of them only with encoding base64. */
export function bytesOf(output: { data: string; encoding?: "base64" }): Buffer {
  return Buffer.from(output.data, output.encoding ?? "utf8");
}
