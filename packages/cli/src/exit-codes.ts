/** What the command's exit code means; docs/cli.md has the table. */
export const exitCodes = {
  ok: 0,
  failed: 1,
  usage: 2,
  notFound: 3,
  unauthorized: 4,
  limit: 5,
  unreachable: 6,
  /** EX_CONFIG: a start again would not help; deploy/alcove.service knows it. */
  configuration: 78,
  /** exec and shell: the command ran into its deadline. */
  timeout: 124,
  /** exec and shell: the failure is ours, not the command's. */
  execFailed: 125,
  interrupted: 130,
  /** exec and shell: who read the output left first, as a shell tells SIGPIPE; what the command would have ended with nobody knows. */
  unread: 141,
} as const;

/** Arguments that make no sense together. */
export class UsageError extends Error {
  constructor(message: string) {
    super(message);
    this.name = "UsageError";
  }
}

/** Ends the command with a code, after what had to be said was said. */
export class ExitWith extends Error {
  readonly exitCode: number;
  constructor(exitCode: number) {
    super(`exit ${exitCode}`);
    this.name = "ExitWith";
    this.exitCode = exitCode;
  }
}

export function exitCodeOf(error: unknown): number {
  if (error instanceof ExitWith) return error.exitCode;
  if (error instanceof UsageError) return exitCodes.usage;
  if (error instanceof Error && error.name === "ConfigError") return exitCodes.configuration;
  // Errors of the service's own modules, used by the image commands, carry the same codes.
  switch (error instanceof Error && "code" in error ? error.code : "") {
    case "not_found":
      return exitCodes.notFound;
    case "unauthorized":
    case "forbidden":
      return exitCodes.unauthorized;
    case "resource_limit":
      return exitCodes.limit;
    case "unreachable":
    case "cut":
    case "unavailable":
    case "client_timeout":
      return exitCodes.unreachable;
    case "cancelled":
      return exitCodes.interrupted;
    default:
      return exitCodes.failed;
  }
}
