import { BadRequest, NotFound, ProviderError, Unavailable } from "../ports/errors.ts";
import { isLoopbackRegistry } from "./image-name.ts";
import { ProgramMissing, runProgram } from "./programs.ts";

/**
 * Copies an image from its registry into an OCI layout at `directory`. Only a registry on this machine is spoken to
 * without TLS.
 * @throws BadRequest when skopeo is not installed; NotFound; Unavailable when the registry cannot be reached.
 */
export async function downloadImage(
  name: string,
  directory: string,
  options: { signal: AbortSignal; onLine: (line: string) => void },
): Promise<void> {
  const insecure = isLoopbackRegistry(name) ? ["--src-tls-verify=false"] : [];
  const args = ["copy", ...insecure, "--retry-times", "2", `docker://${name}`, `oci:${directory}:image`];
  const { exitCode, stderr } = await runProgram("skopeo", args, options).catch((error: unknown) => {
    if (!(error instanceof ProgramMissing)) throw error;
    throw new BadRequest(
      `pulling ${name} needs the program skopeo (Debian package skopeo); without it: alcove image import SOURCE ${name}`,
      { cause: error },
    );
  });
  if (exitCode === 0) return;
  const cause = new Error(stderr);
  const said = stderr.split("\n").at(-1) ?? "";
  const why = /msg="((?:[^"\\]|\\.)*)"/.exec(said)?.[1]?.replaceAll('\\"', '"') ?? said;
  if (
    /manifest unknown|name unknown|not found|unauthorized|denied|invalid status code from registry 404/i.test(
      stderr,
    )
  )
    throw new NotFound(`the registry has no image ${name}, or does not give it to this machine: ${why}`, {
      cause,
    });
  if (/connection refused|no such host|timeout|unreachable|server misbehaving|connection reset/i.test(stderr))
    throw new Unavailable(`the registry of ${name} cannot be reached: ${why}`, { cause });
  throw new ProviderError(`skopeo could not pull ${name}: ${why}`, { cause });
}

/** Whether images can be pulled here. */
export async function canPull(options: { signal: AbortSignal }): Promise<boolean> {
  try {
    return (await runProgram("skopeo", ["--version"], options)).exitCode === 0;
  } catch (error) {
    if (error instanceof ProgramMissing) return false;
    throw error;
  }
}
