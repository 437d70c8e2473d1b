export function compileCacheFolder(env?: NodeJS.ProcessEnv): string | undefined;
