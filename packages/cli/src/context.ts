import { AlcoveClient } from "@alcove/sdk";

export const defaultUrl = "http://127.0.0.1:7423";

/** Options every client command takes. */
export interface ClientFlags {
  url?: string;
  apiKey?: string;
  userId?: string;
}

/** Of commands whose answer can be printed as JSON. */
export interface JsonFlags {
  json?: boolean;
}

/** Flags beat the environment. */
export function openClient(flags: ClientFlags): AlcoveClient {
  return new AlcoveClient({
    url: flags.url ?? (process.env.ALCOVE_URL || defaultUrl),
    apiKey: flags.apiKey ?? process.env.ALCOVE_API_KEY,
    userId: flags.userId,
  });
}

/** Aborts at the first Ctrl-C; the second ends the process. */
export function interruptSignal(): Disposable & { signal: AbortSignal } {
  const controller = new AbortController();
  const interrupt = () => {
    if (controller.signal.aborted) process.exit(130);
    controller.abort(new Error("interrupted"));
  };
  process.on("SIGINT", interrupt);
  process.on("SIGTERM", interrupt);
  return {
    signal: controller.signal,
    [Symbol.dispose]() {
      process.removeListener("SIGINT", interrupt);
      process.removeListener("SIGTERM", interrupt);
    },
  };
}
