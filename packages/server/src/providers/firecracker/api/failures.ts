import { DomainError, ProviderError, Unavailable } from "../../../ports/errors.ts";

/** Firecracker answered a request with an error. What it said may name paths of the host: it is for the log. */
export class FirecrackerRefusal extends Error {
  readonly status: number;

  constructor(request: string, status: number, fault: string) {
    super(`Firecracker answered ${request} with status ${status}: ${fault}`);
    this.name = "FirecrackerRefusal";
    this.status = status;
  }
}

/** What a client is told: which request, and how it was answered, without the answer itself. */
export function refused(request: string, status: number, fault: string): ProviderError {
  return new ProviderError(
    `Firecracker refused ${request} with status ${status}; what it said is in the service's log`,
    { cause: new FirecrackerRefusal(request, status, fault) },
  );
}

export function unfit(request: string, why: string, cause?: unknown): ProviderError {
  return new ProviderError(`Firecracker's answer to ${request} is unfit: ${why}`, { cause });
}

/** @throws Unavailable for a process that is not there, is not ready or does not answer in time. */
export function unanswered(request: string, why: string, cause: unknown): Unavailable {
  return new Unavailable(`Firecracker did not answer ${request}: ${why}`, { cause });
}

export const isOurs = (error: unknown): error is DomainError => error instanceof DomainError;
