/** Of rustc and rustup: where they are (undefined: on the PATH), and from where they are asked. */
interface Toolchain {
  folder?: string | undefined;
  env: NodeJS.ProcessEnv;
  cwd: string;
}
export function hasTarget(target: string, toolchain: Toolchain): boolean;
/** @returns why the compiler has no such target; undefined: it has, perhaps from now on. */
export function addTarget(
  target: string,
  toolchain: Toolchain & { log: (line: string) => void },
): Promise<string | undefined>;
