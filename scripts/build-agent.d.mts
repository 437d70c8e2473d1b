export function buildAgent(options?: {
  log?: (line: string) => void;
  force?: boolean;
}): Promise<{ built: boolean; folder: string; binaries: Record<string, string> }>;
export function findCargo(): { cargo: string; folder: string | undefined; version: string };
