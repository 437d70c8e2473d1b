export const fromSource: readonly string[];
export const bundleFolder: string;
export const sourcesFile: string;
export function currentBundle(root: string): string | undefined;
