/** @returns whether the packages of the clone are there, as its lock file names them. */
export function ensureDependencies(root: string, options: { dev: boolean }): Promise<boolean>;
