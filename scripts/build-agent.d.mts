export function buildAgent(options?: {
  log?: (line: string) => void;
  force?: boolean;
}): Promise<{ built: boolean; folder: string; binaries: Record<string, string> }>;
export function findCargo(): { cargo: string; folder: string | undefined; version: string };
/** The C library that both programs in agent/dist hold. */
export function agentLibrary(): "musl" | "gnu";
/** Why that is not musl; empty where it is. */
export function whyNotMusl(): string;
/** @returns why the compiler has no target for musl; undefined: it has, perhaps from now on. */
export function addMuslTarget(options: {
  folder: string | undefined;
  env: NodeJS.ProcessEnv;
  log: (line: string) => void;
}): Promise<string | undefined>;
/** The target that they are built for. */
export function agentTarget(): string;
