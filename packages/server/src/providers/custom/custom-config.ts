export interface CustomConfig {
  defaultImage: string;
  /** Address of the backend; paths of the contract are below it. */
  url: string;
  /** Empty: requests carry none. */
  apiKey: string;
  authHeader: "bearer" | "x-api-key";
  /** Whether sandboxes reach a network, unless a spawn asks for less. */
  networkMode: "none" | "outbound";
  /** Longest deadline of one call. */
  timeoutMs: number;
}
