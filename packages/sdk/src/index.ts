/** What methods take and give: `Sandbox`, `SpawnRequest`, `ExecResult`, … */
export type * from "@alcove/wire";
export { AuditClient, type AuditFilter } from "./audit.ts";
export { AlcoveClient, type CallOptions, type SandboxFilter } from "./client.ts";
export { AlcoveError, type ClientErrorCode } from "./errors.ts";
export type { EventFilter } from "./events.ts";
export { bytesOf } from "./exec-output.ts";
export type { ExecAttach, ExecMessage, ExecSocket, ExecStart } from "./exec-socket.ts";
export { FilesClient } from "./files.ts";
export { KeysClient } from "./keys.ts";
export { readEvents, readLines, readNdjson, type ServerSentEvent } from "./lines.ts";
export type { PortAnswer, PortRequest } from "./port-request.ts";
export { QuotasClient } from "./quotas.ts";
export { TemplatesClient } from "./templates.ts";
export type { TransportOptions } from "./transport.ts";
export { WorkersClient } from "./workers.ts";
