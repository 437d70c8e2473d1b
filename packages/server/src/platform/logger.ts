import { type Logger, type LoggerOptions, pino } from "pino";
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

/** Logs go to standard error, one JSON object or one readable line each. */
export function createLogger(options: { level: string; format: "json" | "pretty" }): Logger {
  const settings = loggerSettings(options.level);
  if (options.format === "json") return pino(settings, pino.destination({ dest: 2, sync: true }));
  return pino({
    ...settings,
    transport: {
      target: "pino-pretty",
      options: { destination: 2, ignore: "pid,hostname", translateTime: "HH:MM:ss.l" },
    },
  });
}

/** For tests. */
export const silentLogger: Logger = pino({ level: "silent" });
