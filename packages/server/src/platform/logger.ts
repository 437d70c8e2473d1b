import { isatty } from "node:tty";
import { type DestinationStream, type Logger, type LoggerOptions, pino } from "pino";
import { LogOutput } from "./log-output.ts";
import { currentRequestId } from "./request-scope.ts";

export type { Logger } from "pino";

/** Field names whose values never reach a log, at the top of a line or one level down. */
const secretPaths = [
  "token",
  "apiKey",
  "adminApiKey",
  "headers.authorization",
  'headers["x-api-key"]',
  'headers["x-admin-api-key"]',
];

/** What every logger of ours is made with. */
export function loggerSettings(level: string): LoggerOptions {
  const paths = secretPaths.flatMap((path) => [path, `*.${path}`]);
  return {
    level,
    redact: { paths, censor: "[redacted]" },
    mixin: () => {
      const requestId = currentRequestId();
      return requestId === undefined ? {} : { request_id: requestId };
    },
  };
}

/**
 * Logs go to standard error, one JSON object or one readable line each. A reader that is behind or a full disk holds up
 * nothing: lines that found no room are missing, and a line says how many.
 */
export async function createLogger(options: { level: string; format: "json" | "pretty" }): Promise<Logger> {
  const settings = loggerSettings(options.level);
  const output = new LogOutput({
    fd: 2,
    onDropped: (lines) =>
      telling.warn(
        { event: "log.dropped", suppressed: lines },
        "log lines are missing here: their reader was behind, or the disk was full",
      ),
  });
  const stream = options.format === "json" ? output : await prettyStream(output);
  const telling = pino({ ...settings, level: "warn" }, stream);
  return pino(settings, stream);
}

async function prettyStream(output: LogOutput): Promise<DestinationStream> {
  const { prettyFactory } = await import("pino-pretty");
  const pretty = prettyFactory({
    colorize: isatty(2),
    ignore: "pid,hostname",
    translateTime: "HH:MM:ss.l",
  });
  return { write: (line) => output.write(pretty(line)) };
}

/** For tests. */
export const silentLogger: Logger = pino({ level: "silent" });
