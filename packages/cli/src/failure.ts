import { AlcoveError } from "@alcove/sdk";
import { ExitWith, exitCodeOf, UsageError } from "./exit-codes.ts";
import { installedRelease } from "./release.ts";
import { printable } from "./terminal/printable.ts";

/** Says on standard error what went wrong and what helps. @returns the exit code. */
export function reportFailure(error: unknown): number {
  if (error instanceof ExitWith) return error.exitCode;
  process.stderr.write(`alcove: ${printable(describe(error))}\n`);
  return exitCodeOf(error);
}

function describe(error: unknown): string {
  if (error instanceof AlcoveError) {
    const requestId =
      error.requestId !== undefined && error.status >= 500 ? ` (request ${error.requestId})` : "";
    return `${error.message}${requestId}${advice(error)}`;
  }
  if (error instanceof UsageError) return error.message;
  // A problem with the configuration, the file system or the like: the message is made for people.
  if (error instanceof Error) return error.message;
  return String(error);
}

function advice(error: AlcoveError): string {
  if (error.code === "unreachable") {
    const start =
      installedRelease() === undefined ? "`bin/alcove serve` (or `npm start`)" : "`systemctl start alcove`";
    return `; start one with ${start}, or say where it is with --url or ALCOVE_URL`;
  }
  if (error.code === "unauthorized") return "; give the key with --api-key or ALCOVE_API_KEY";
  return "";
}
