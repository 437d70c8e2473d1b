import type { Config } from "../config/config.ts";
import type { AnswerBudget } from "../core/answers/answer-budget.ts";
import type { BodyBudget } from "../core/answers/body-budget.ts";
import type { AuditLog } from "../core/audit/audit-log.ts";
import type { ResponseCounts } from "../core/diagnostics/response-counts.ts";
import type { ServiceFigures } from "../core/diagnostics/service-figures.ts";
import type { EventLog } from "../core/events/event-log.ts";
import type { ExecService } from "../core/exec/exec-service.ts";
import type { FileService } from "../core/files/file-service.ts";
import type { KeyRing } from "../core/keys/key-ring.ts";
import type { Tickets } from "../core/keys/tickets.ts";
import type { Previews } from "../core/previews/previews.ts";
import type { ProviderRegistry } from "../core/providers/provider-registry.ts";
import type { Limits } from "../core/quotas/limits.ts";
import type { Quotas } from "../core/quotas/quotas.ts";
import type { RateLimits } from "../core/rate-limits/rate-limits.ts";
import type { SandboxService } from "../core/sandboxes/sandbox-service.ts";
import type { Templates } from "../core/templates/templates.ts";
import type { Drain } from "../core/workers/drain.ts";
import type { Workers } from "../core/workers/workers.ts";
import type { Logger } from "../platform/logger.ts";
import type { Clock } from "../ports/clock.ts";
import type { Store } from "../ports/store.ts";
import type { Tracer } from "../ports/tracer.ts";

/** Everything the HTTP interface talks to. */
export interface ApiServices {
  sandboxes: SandboxService;
  execs: ExecService;
  files: FileService;
  events: EventLog;
  registry: ProviderRegistry;
  quotas: Quotas;
  limits: Limits;
  templates: Templates;
  audit: AuditLog;
  answers: AnswerBudget;
  /** Of JSON bodies that are read and used. */
  bodies: BodyBudget;
  /** Of input that was given whole, until its command has it: less than bodies have, so that it leaves room for those. */
  inputs: BodyBudget;
  /** Of what WebSockets hold of their clients' messages. */
  sockets: BodyBudget;
  /** What unpacks raw bodies. */
  unpacking: BodyBudget;
  rateLimits: RateLimits;
  figures: ServiceFigures;
  keys: KeyRing;
  tickets: Tickets;
  workers: Workers;
  responses: ResponseCounts;
  drain: Pick<Drain, "refusal">;
  previews: Previews;
}

export interface ApiOptions extends ApiServices {
  config: Pick<Config, "server" | "auth" | "pool" | "preview">;
  logger: Logger;
  clock: Clock;
  version: string;
  /** Monotonic, milliseconds. */
  startedMs: number;
  /** Whether the default provider takes spawns. */
  ready: () => boolean;
  store: Pick<Store, "ping">;
  /** Absent: nothing is traced. */
  tracer?: Tracer | undefined;
  /** Why nothing new can be written down now; undefined when it can. */
  storeRefusal?: () => string | undefined;
}
