/** Takes variables out of the environment that a package would read behind the configuration's back. */
export function forgetVariables(prefix: string): void {
  for (const name of Object.keys(process.env)) if (name.startsWith(prefix)) delete process.env[name];
}
