import { type ChildProcess, spawn } from "node:child_process";
import { closeSync, openSync, renameSync } from "node:fs";
import { createServer } from "node:net";
import { join } from "node:path";
import { ProviderError } from "../../ports/errors.ts";

/** Where the agent is shown in every root. */
const guestAgent = "/.alcove-agent";
const listenFd = 3;

/**
 * Starts proot with the agent inside, in a session of its own so that it outlives the service. The socket is bound
 * outside and handed in: nothing in the sandbox sees its name or could put another in its place.
 */
export function launchProot(options: {
  prootBinary: string;
  folder: string;
  rootfs: string;
  binds: readonly string[];
  agentPath: string;
  /** Whether the user the service runs as is shown as root inside. */
  fakeRoot: boolean;
  /** The group that commands of other users pass through `folder` with. */
  passingGroup: number | undefined;
}): { child: ChildProcess; pid: number } {
  const args = [
    ...(options.fakeRoot ? ["-0"] : []),
    "-r",
    options.rootfs,
    ...options.binds.flatMap((bind) => ["-b", bind]),
    "-b",
    `${options.agentPath}:${guestAgent}`,
    "-w",
    "/",
    guestAgent,
    "serve",
    "--listen-fd",
    String(listenFd),
    "--compat",
    ...(options.passingGroup === undefined ? [] : ["--passing-group", String(options.passingGroup)]),
  ];
  const folderFd = openSync(options.folder, "r");
  const consoleFd = openSync(join(options.folder, "console.log"), "a", 0o600);
  const server = createServer();
  try {
    // Through the descriptor the name is short whatever the folder's is: sockets allow 108 bytes.
    const alias = `/proc/self/fd/${folderFd}`;
    server.on("error", () => undefined);
    server.listen(`${alias}/listen.sock`);
    const handle = descriptorOf(server);
    const child = spawn(options.prootBinary, args, {
      detached: true,
      stdio: ["ignore", consoleFd, consoleFd, handle],
      env: { PROOT_NO_SECCOMP: "1", PATH: "/usr/local/bin:/usr/bin:/bin" },
      cwd: "/",
    });
    child.on("error", () => undefined);
    // Closing a listener removes the name it was bound to; under another name the socket stays.
    renameSync(`${alias}/listen.sock`, `${alias}/agent.sock`);
    if (child.pid === undefined) {
      throw new ProviderError(
        `${options.prootBinary} cannot be started; install proot or set providers.proot.proot_binary`,
      );
    }
    child.unref();
    return { child, pid: child.pid };
  } finally {
    server.close();
    closeSync(folderFd);
    closeSync(consoleFd);
  }
}

/** The listening socket's descriptor, which Node's types do not show. @throws ProviderError when it was not bound. */
function descriptorOf(server: object): number {
  const handle: unknown = Reflect.get(server, "_handle");
  const descriptor: unknown =
    typeof handle === "object" && handle !== null ? Reflect.get(handle, "fd") : undefined;
  if (typeof descriptor !== "number" || descriptor < 0) {
    throw new ProviderError("the socket for a sandbox's agent could not be bound in data_dir");
  }
  return descriptor;
}
