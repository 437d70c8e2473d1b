import type { Config } from "../config/config.ts";
import type { Logger } from "../platform/logger.ts";
import type { Clock } from "../ports/clock.ts";
import type { Tracer } from "../ports/tracer.ts";

/**
 * @returns undefined without `telemetry.otlp_endpoint`. The packages of OpenTelemetry are loaded here and for nobody else:
 *   a service that is not traced has none of their code. Closing it sends what is left, for `closeWithinMs` at most.
 */
export async function openTracer(options: {
  settings: Config["telemetry"];
  logger: Logger;
  clock: Clock;
  version: string;
  instanceId: string;
  closeWithinMs: number;
}): Promise<(Tracer & AsyncDisposable) | undefined> {
  if (options.settings.otlpEndpoint === "") return undefined;
  const { OtlpTracer } = await import("./otlp-tracer.ts");
  return new OtlpTracer(options);
}
