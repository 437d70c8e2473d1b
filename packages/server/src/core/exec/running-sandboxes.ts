import type { SandboxService } from "../sandboxes/sandbox-service.ts";

/** What commands and files need of the sandboxes. */
export type RunningSandboxes = Pick<SandboxService, "locate" | "subscribe">;
