import path from "node:path";
import { BadRequest, DomainError, NotFound, ProviderError, TooLarge, Unavailable } from "../ports/errors.ts";
import { isLoopbackRegistry } from "./image-name.ts";
import { ProgramMissing, runProgram } from "./programs.ts";
import { treeSize } from "./tree-size.ts";
import { refuseWithoutSpace, type UnpackLimits } from "./unpack-budget.ts";

const lookEveryMs = 500;

/**
 * Copies an image from its registry into an OCI layout at `directory`. Only a registry on this machine is spoken to
 * without TLS.
 * @throws BadRequest when skopeo is not installed; NotFound; Unavailable when the registry cannot be reached.
 */
export async function downloadImage(
  name: string,
  directory: string,
  options: {
    signal: AbortSignal;
    /** Whether the registry is shown what the service's user logged in with. */
    withCredentials: boolean;
    limits: UnpackLimits;
    onLine: (line: string) => void;
  },
): Promise<void> {
  const insecure = isLoopbackRegistry(name) ? ["--src-tls-verify=false"] : [];
  const anonymous = options.withCredentials ? [] : ["--src-no-creds"];
  const flags = ["copy", ...insecure, ...anonymous, "--retry-times", "2"];
  const args = [...flags, `docker://${name}`, `oci:${directory}:image`];
  await using watch = watchDownload(directory, options);
  const work = runProgram("skopeo", args, { ...options, signal: watch.signal });
  const { exitCode, stderr } = await work.catch((error: unknown) => {
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

/** Ends a download that takes more room than the image may unpack to, or than there is. */
function watchDownload(
  directory: string,
  options: { signal: AbortSignal; limits: UnpackLimits },
): AsyncDisposable & { signal: AbortSignal } {
  const { maxUnpackedBytes, keepFreeBytes } = options.limits;
  const over = new AbortController();
  const parent = path.dirname(directory);
  refuseWithoutSpace(parent, keepFreeBytes);
  let looking = Promise.resolve();
  const look = async () => {
    refuseWithoutSpace(parent, keepFreeBytes);
    const bytes = await treeSize(parent, options);
    if (bytes > maxUnpackedBytes)
      throw new TooLarge(`the image is larger than the ${maxUnpackedBytes} bytes of images.max_unpacked`);
  };
  const timer = setInterval(() => {
    looking = looking.then(look).catch((error: unknown) => {
      // Files that go away while they are counted are no reason.
      if (error instanceof DomainError) over.abort(error);
    });
  }, lookEveryMs);
  return {
    signal: AbortSignal.any([options.signal, over.signal]),
    [Symbol.asyncDispose]: async () => {
      clearInterval(timer);
      await looking;
    },
  };
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
