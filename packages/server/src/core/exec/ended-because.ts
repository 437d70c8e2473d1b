import type { ExecExit } from "../../ports/sandbox-operations.ts";

/** In words, why the service ended a command, where the reason alone does not tell. */
export function endedBecause({ inputLostBytes }: ExecExit): string | undefined {
  if (inputLostBytes === undefined) return undefined;
  const bytes = inputLostBytes === 1 ? "1 byte" : `${inputLostBytes} bytes`;
  return `the command was ended because its input was lost: the service stopped before ${bytes} of it had arrived, and nobody gave it again`;
}
