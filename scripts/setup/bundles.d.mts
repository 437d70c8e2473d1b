export function ensureBundle(root: string, node: string, kind: "client" | "service"): Promise<void>;
