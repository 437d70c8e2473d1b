export type BundleKind = "client" | "service";
export const withService: readonly string[];
export const bundlesFolder: string;
export function currentBundle(root: string, kind: BundleKind): string | undefined;
