declare const brand: unique symbol;
type Branded<B extends string> = string & { readonly [brand]: B };

/** `sb-` and 12 of [a-z0-9]: safe in host names. The control plane's name of a sandbox. */
export type SandboxId = Branded<"SandboxId">;
/** A provider's own name of what runs a sandbox. */
export type RuntimeId = Branded<"RuntimeId">;
/** `ex-` and 8 to 32 of [a-z0-9]. */
export type ExecId = Branded<"ExecId">;

export interface Ids {
  sandboxId(): SandboxId;
  runtimeId(): RuntimeId;
  execId(): ExecId;
  /** @returns `bytes` random bytes in hexadecimal. */
  secret(bytes: number): string;
}
