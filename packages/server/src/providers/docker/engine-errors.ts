import { type DomainError, ProviderError, StorageFull, Unavailable } from "../../ports/index.ts";
import type { EngineAddress } from "./engine-address.ts";

/** The engine answered an error status. Translated before it leaves the provider; it stays there as `cause`. */
export class EngineRefusal extends Error {
  readonly status: number;
  /** What the engine said. */
  readonly said: string;

  constructor(call: { method: string; path: string }, status: number, said: string) {
    super(`${call.method} ${call.path}: ${status} ${said}`);
    this.name = "EngineRefusal";
    this.status = status;
    this.said = said;
  }
}

/** Whether an error is the engine's answer with one of `statuses`. */
export function isRefusal(error: unknown, ...statuses: number[]): error is EngineRefusal {
  return error instanceof EngineRefusal && (statuses.length === 0 || statuses.includes(error.status));
}

/** Says why nobody answers at `address`, and the way out. */
export function unreachableEngine(address: EngineAddress, error: unknown): DomainError {
  const code = error instanceof Error && "code" in error ? String(error.code) : "";
  return new Unavailable(`no Docker Engine at ${address.text}: ${reasonAndWayOut(code, error)}`, {
    cause: error,
  });
}

function reasonAndWayOut(code: string, error: unknown): string {
  switch (code) {
    case "ENOENT":
      return "the socket does not exist; start dockerd, or name the engine's socket in providers.docker.socket";
    case "EACCES":
    case "EPERM":
      return "permission denied; add this user to the group docker and log in again, or run the service as root";
    case "ECONNREFUSED":
      return "nothing listens there; start dockerd (systemctl start docker)";
    case "ENOTFOUND":
    case "EAI_AGAIN":
      return "the host name is not known; correct providers.docker.socket";
    case "ECONNRESET":
    case "EPIPE":
      return "it closed the connection; dockerd is restarting or stopping";
    case "DEPTH_ZERO_SELF_SIGNED_CERT":
    case "SELF_SIGNED_CERT_IN_CHAIN":
    case "UNABLE_TO_VERIFY_LEAF_SIGNATURE":
    case "CERT_HAS_EXPIRED":
    case "ERR_TLS_CERT_ALTNAME_INVALID":
      return `its certificate is not one that ca.pem of providers.docker.tls_dir vouches for at this address (${code})`;
    case "EPROTO":
    case "HPE_INVALID_CONSTANT":
      return "one side speaks TLS and the other does not; see providers.docker.tls_dir";
    default:
      if (/^ERR_SSL_/.test(code))
        return `it refused the certificate of providers.docker.tls_dir, or speaks no TLS (${code})`;
      return error instanceof Error ? error.message : String(error);
  }
}

/**
 * A refusal that has no meaning of its own to the caller, unless the engine has no room, which is seen here first where its disk
 * is another machine's. Anything but a refusal is returned as it is.
 */
export function asProviderError(action: string, error: unknown): unknown {
  if (!isRefusal(error)) return error;
  if (/no space left on device|disk quota exceeded/i.test(error.said))
    return new StorageFull(
      `the Docker Engine could not ${action}: its disk is full; free space there, then try again`,
      { cause: error },
    );
  return new ProviderError(`the Docker Engine could not ${action} (status ${error.status})`, {
    cause: error,
  });
}

/** Whether what failed may have wanted what the engine's machine has only so much of. No image can make a container fail so. */
export function lacksRoom(error: unknown): boolean {
  const refusal = error instanceof Error && isRefusal(error.cause) ? error.cause : error;
  return isRefusal(refusal) && refusal.status >= 500 && scarce.test(refusal.said);
}

const scarce =
  /no space left|disk quota exceeded|cannot allocate memory|resource temporarily unavailable|too many open files|address pool/i;
