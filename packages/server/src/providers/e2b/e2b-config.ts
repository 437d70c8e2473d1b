export interface E2bConfig {
  defaultImage: string;
  apiKey: string;
  /** Empty: that of the domain. */
  apiUrl: string;
  domain: string;
  /** Address of every sandbox; empty: that of the domain. */
  sandboxUrl: string;
  /** Whether sandboxes reach the internet. */
  networkMode: "none" | "outbound";
  /** Longest deadline of one call. */
  timeoutMs: number;
  /** Longest time to live the service is asked for at once. */
  maxLifetimeMs: number;
}
