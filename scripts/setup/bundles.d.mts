export function ensureBundle(
  root: string,
  node: string,
  kind: "client" | "service",
  options?: { waitMs?: number; makingMs?: number },
): Promise<void>;
