/** The worker that this process is. */
export const localWorkerId = "local";

/** Which provider of which worker. Every row of a sandbox is one: names of providers repeat from worker to worker. */
export interface ProviderAddress {
  readonly workerId: string;
  readonly provider: string;
}
