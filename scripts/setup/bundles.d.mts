export function ensureBundle(
  root: string,
  node: string,
  kind: "client" | "service",
  options?: { longestWaitMs: number },
): Promise<void>;
