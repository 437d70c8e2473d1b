import { localWorkerId } from "./core/providers/provider-address.ts";
import type { Logger } from "./platform/logger.ts";
import type { Store } from "./ports/index.ts";

/** Setting: the default provider of the last start. */
const lastDefault = "default_provider";

/** What the last run of this installation left. */
export interface ProvidersBefore {
  /** undefined: this is the first start, or an earlier release wrote nothing down. */
  lastDefault: string | undefined;
  /** How many sandboxes of each provider are there, and may still run. */
  sandboxes: ReadonlyMap<string, number>;
}

export async function providersBefore(store: Store): Promise<ProvidersBefore> {
  const sandboxes = new Map<string, number>();
  for (const { workerId, provider, state } of await store.sandboxes.listLive()) {
    if (workerId === localWorkerId && state !== "error")
      sandboxes.set(provider, (sandboxes.get(provider) ?? 0) + 1);
  }
  return { lastDefault: await store.setting(lastDefault), sandboxes };
}

/** A database that takes nothing new does not keep the service from starting. */
export async function rememberDefault(
  store: Store,
  { name, before, logger }: { name: string; before: ProvidersBefore; logger: Logger },
): Promise<void> {
  if (before.lastDefault === name) return;
  try {
    await store.changeSetting(lastDefault, name);
  } catch (err) {
    logger.warn({ err, provider: name }, "the default provider could not be written down for the next start");
  }
}
