export function prepare(options?: { dev?: boolean; agent?: boolean; service?: boolean }): Promise<{
  node: string;
  agent: { ready: true } | { ready: false; why: string; command?: string };
}>;
