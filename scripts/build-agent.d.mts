export function buildAgent(options?: {
  log?: (line: string) => void;
  force?: boolean;
}): Promise<{ built: boolean; folder: string; binaries: Record<string, string> }>;
export function findCargo(): { cargo: string; folder: string | undefined; version: string };
/** The C library that both programs in agent/dist hold. */
export function agentLibrary(): "musl" | "gnu";
/** Why that is not musl; empty where it is. */
export function whyNotMusl(): string;
/** The target that they are built for. */
export function agentTarget(): string;
