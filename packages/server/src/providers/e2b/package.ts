import type { Sandbox as PackageSandbox, SandboxInfo } from "e2b";
import { forgetVariables } from "../../config/forget-variables.ts";
import { TooLongAnswer } from "./answer-bounds.ts";
import type { E2bConfig } from "./e2b-config.ts";

export type { PackageSandbox, SandboxInfo };

/** The oldest envd whose inputs can be closed and whose files can be written as a stream. */
export const oldestEnvd = "0.5.7";

/** Domains of the hosted service, whose sandboxes are all reached through one host. */
const domainsWithOneHost = new Set(["e2b.app", "e2b.dev", "e2b.pro", "e2b-staging.dev"]);
const envdPort = 49_983;

/** How a sandbox is reached, as the control API tells it. */
export interface Access {
  sandboxId: string;
  sandboxDomain: string | undefined;
  envdVersion: string;
  envdAccessToken: string | undefined;
}

/** What this provider uses of the package, with every address and key from our configuration. */
export interface E2bPackage {
  create(
    template: string,
    options: {
      timeoutMs: number;
      metadata: Record<string, string>;
      envs: Record<string, string>;
      allowInternetAccess: boolean;
      signal: AbortSignal;
    },
  ): Promise<Access>;
  connect(sandboxId: string, options: { timeoutMs: number; signal: AbortSignal }): Promise<Access>;
  list(metadata: Record<string, string>, options: { signal: AbortSignal }): Promise<SandboxInfo[]>;
  info(sandboxId: string, options: { signal: AbortSignal }): Promise<SandboxInfo>;
  setTimeout(sandboxId: string, timeoutMs: number, options: { signal: AbortSignal }): Promise<void>;
  /** @returns false when there was none. */
  kill(sandboxId: string, options: { signal: AbortSignal }): Promise<boolean>;
  /** Asks nothing of anybody. */
  open(access: Access): PackageSandbox;
}

const pageSize = 100;
/** Pages of a list of sandboxes; a service that always promises one more is not believed. */
const pagesAtMost = 1_000;
/** Labels of all sandboxes together. */
const labelBytesAtMost = 64 * 1_048_576;
/**
 * What sandboxes are asked over the package's RPC client has as many connections as it needs: a command that runs holds one, all
 * sandboxes may be behind one address, and who has many commands must not keep others waiting.
 */
const rpcBounds = { E2B_ENVD_RPC_CONNECTIONS: "1000000", E2B_ENVD_RPC_INFLIGHT_REQUESTS: "0" };

/**
 * Loads the package. It reads variables named E2B_… for whatever it was not given, and some for which there is no option:
 * they are taken out of the environment first.
 */
export async function loadPackage(config: E2bConfig): Promise<E2bPackage> {
  forgetVariables("E2B_");
  const [{ Sandbox }, moveFile] = await Promise.all([import("e2b"), fileMover()]);
  const common = {
    apiKey: config.apiKey,
    apiUrl: config.apiUrl || `https://api.${config.domain}`,
    domain: config.domain,
    debug: false,
    validateApiKey: false,
    // Every call has a deadline of ours, and what may be repeated core repeats.
    requestTimeoutMs: 0,
    retries: 0,
    headers: { "User-Agent": "alcove" },
    // No logger: with one, the package writes out every message of every stream for it.
  };
  /** Makes the steps of the package reachable that it takes one after the other. */
  class Steps extends Sandbox {
    static make(template: string, timeoutMs: number, options: object): Promise<Access> {
      return Steps.createSandbox(template, timeoutMs, options);
    }
    static reach(sandboxId: string, options: object): Promise<Access> {
      return Steps.connectSandbox(sandboxId, options);
    }
  }
  const open = ({ sandboxId, sandboxDomain, envdVersion, envdAccessToken }: Access) => {
    const sandbox = new Sandbox({
      ...common,
      sandboxId,
      envdVersion,
      sandboxUrl: config.sandboxUrl || sandboxUrl(sandboxId, sandboxDomain ?? config.domain),
      ...(sandboxDomain === undefined ? {} : { sandboxDomain }),
      ...(envdAccessToken === undefined ? {} : { envdAccessToken }),
    });
    // The package moves the files of all sandboxes over ten connections, each of which waits for who reads slowly.
    // biome-ignore lint/complexity/useLiteralKeys: it is private, and this is how TypeScript lets one in.
    const { api } = sandbox.files["envdApi"];
    api.use({ onRequest: ({ request }: { request: Request }) => moveFile(request) });
    return sandbox;
  };
  // They are read with the first sandbox that is opened, and never again.
  Object.assign(process.env, rpcBounds);
  const nobody = { sandboxId: "none", sandboxDomain: undefined, envdAccessToken: undefined };
  open({ ...nobody, envdVersion: oldestEnvd });
  forgetVariables("E2B_");
  return {
    create: (template, { timeoutMs, ...options }) =>
      Steps.make(template, timeoutMs, { ...common, ...options, lifecycle: { onTimeout: "kill" } }),
    connect: (sandboxId, options) => Steps.reach(sandboxId, { ...common, ...options }),
    async list(metadata, options) {
      const pages = Sandbox.list({ ...common, query: { metadata }, limit: pageSize });
      const found: SandboxInfo[] = [];
      let bytes = 0;
      for (let page = 0; pages.hasNext && page < pagesAtMost; page += 1) {
        const items = await pages.nextItems({ ...common, ...options });
        for (const { metadata } of items)
          for (const [key, value] of Object.entries(metadata)) bytes += key.length + value.length;
        if (bytes > labelBytesAtMost) throw new TooLongAnswer("e2b lists more than is believable");
        found.push(...items);
      }
      return found;
    },
    info: (sandboxId, options) => Sandbox.getInfo(sandboxId, { ...common, ...options }),
    setTimeout: (sandboxId, timeoutMs, options) =>
      Sandbox.setTimeout(sandboxId, timeoutMs, { ...common, ...options }),
    kill: (sandboxId, options) => Sandbox.kill(sandboxId, { ...common, ...options }),
    open,
  };
}

/** Each file has a connection of its own: over a shared one who reads slowly holds the others up. */
async function fileMover(): Promise<(request: Request) => Promise<Response>> {
  const { Agent, fetch } = await import("undici");
  const dispatcher = new Agent();
  return async ({ url, method, headers, body, signal }) => {
    const answer = await fetch(url, {
      method,
      headers: [...headers],
      body,
      duplex: "half",
      signal,
      dispatcher,
    });
    const { status, statusText } = answer;
    return new Response(answer.body, { status, statusText, headers: [...answer.headers] });
  };
}

function sandboxUrl(sandboxId: string, domain: string): string {
  return domainsWithOneHost.has(domain)
    ? `https://sandbox.${domain}`
    : `https://${envdPort}-${sandboxId}.${domain}`;
}
