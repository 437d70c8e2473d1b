import { isatty } from "node:tty";
import { type DestinationStream, type Logger, type LoggerOptions, pino, stdSerializers } from "pino";
import { LogOutput } from "./log-output.ts";
import { currentRequestId, currentSpan } from "./request-scope.ts";

export type { Logger } from "pino";

const censor = "[redacted]";
/** Field names whose values never reach a log, at the top of a line, in an object of it or in its headers. */
const secretNames = ["token", "apiKey", "adminApiKey"];
const secretHeaders = ["authorization", "x-api-key", "x-admin-api-key"];

/**
 * What every logger of ours is made with. Secrets are taken out by serializers of their names and, in objects, by a look at
 * their fields: most lines hold no object and so pay nothing, while pino's own redaction by wildcards copies each line and
 * costs more than all else of a request.
 */
export function loggerSettings(level: string): LoggerOptions {
  const hidden = Object.fromEntries(secretNames.map((name) => [name, () => censor]));
  return {
    level,
    serializers: {
      ...hidden,
      headers: withoutSecrets,
      err: (error) => withoutSecrets(told(error)),
    },
    formatters: { log: withoutSecretsBelow },
    mixin: () => {
      const requestId = currentRequestId();
      if (requestId === undefined) return {};
      const span = currentSpan();
      if (span === undefined) return { request_id: requestId };
      return { request_id: requestId, trace_id: span.traceId, span_id: span.spanId };
    },
  };
}

/** An error that calls itself `expected` is told without the place it came from: a full disk meets hundreds of calls. */
function told(error: Error & { expected?: unknown }): unknown {
  const serialized = stdSerializers.err(error);
  if (error?.expected !== true) return serialized;
  const { stack: _stack, ...others } = serialized;
  return others;
}

/** @returns the line itself when no object in it holds a secret. */
function withoutSecretsBelow(line: Record<string, unknown>): Record<string, unknown> {
  let clean = line;
  for (const name in line) {
    const value = line[name];
    if (typeof value !== "object" || value === null || name === "err" || name === "headers") continue;
    const without = withoutSecrets(value);
    if (without === value) continue;
    if (clean === line) clean = { ...line };
    clean[name] = without;
  }
  return clean;
}

/** @returns the value itself when it holds no secret. */
function withoutSecrets(value: unknown): unknown {
  if (typeof value !== "object" || value === null) return value;
  const fields = value as Readonly<Record<string, unknown>>;
  const hidden: Record<string, unknown> = {};
  for (const name of secretNames) if (fields[name] !== undefined) hidden[name] = censor;
  for (const name of secretHeaders) if (fields[name] !== undefined) hidden[name] = censor;
  const headers = withoutSecrets(fields.headers);
  if (headers !== fields.headers) hidden.headers = headers;
  return Object.keys(hidden).length === 0 ? value : { ...fields, ...hidden };
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

/** Lines for people. */
export async function prettyStream(output: Pick<LogOutput, "write">): Promise<DestinationStream> {
  const { prettyFactory } = await import("pino-pretty");
  const pretty = prettyFactory({
    colorize: isatty(2),
    ignore: "pid,hostname",
    translateTime: "HH:MM:ss.l",
  });
  return { write: (line) => output.write(visible(pretty(line))) };
}

/** Callers choose some texts: characters that turn a line around or hide in it are shown by their numbers. */
function visible(text: string): string {
  return text.replaceAll(
    /[\p{Cf}\u2028\u2029\u007f-\u009f]/gu,
    (character) => `\\u{${character.codePointAt(0)?.toString(16)}}`,
  );
}

/** For tests. */
export const silentLogger: Logger = pino({ level: "silent" });
