import { type Logger, pino } from "pino";

export type { Logger } from "pino";

/** Field names whose values never reach a log, at any depth pino looks at. */
const secretPaths = [
  "token",
  "apiKey",
  "adminApiKey",
  "headers.authorization",
  'headers["x-api-key"]',
  'headers["x-admin-api-key"]',
];

/** Logs go to standard error, one JSON object or one readable line each. */
export function createLogger(options: { level: string; format: "json" | "pretty" }): Logger {
  const settings = {
    level: options.level,
    redact: { paths: secretPaths.flatMap((path) => [path, `*.${path}`]), censor: "[redacted]" },
  };
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
