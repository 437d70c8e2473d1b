import type { Capability } from "@alcove/wire";
import { abortable } from "../../platform/abortable.ts";
import { deadlineAfter } from "../../platform/deadline.ts";
import { type CallOptions, type Clock, NotFound, type RuntimeProvider } from "../../ports/index.ts";

export interface ProviderHealthEntry {
  name: string;
  healthy: boolean;
  default: boolean;
  latencyMs: number;
  lastChecked: Date;
  error?: string;
  notes: string[];
  capabilities: Capability[];
  /** Present for providers that inventory runtimes and are healthy. */
  runtimeCount?: number;
}

const healthKeptMs = 10_000;
const checkDeadlineMs = 5_000;

/** The providers that are enabled, and how they are. */
export class ProviderRegistry {
  readonly #providers: ReadonlyMap<string, RuntimeProvider>;
  readonly #defaultName: string;
  readonly #clock: Clock;
  /** The last or current check of each; checks of one provider never overlap. */
  readonly #checks = new Map<
    string,
    { startedMs: number; result: Promise<ProviderHealthEntry>; pending: boolean }
  >();

  constructor(options: { providers: readonly RuntimeProvider[]; defaultName: string; clock: Clock }) {
    this.#providers = new Map(options.providers.map((provider) => [provider.name, provider]));
    this.#defaultName = options.defaultName;
    this.#clock = options.clock;
    if (!this.#providers.has(options.defaultName)) {
      throw new Error(`the default provider "${options.defaultName}" is not among the enabled ones`);
    }
  }

  get all(): RuntimeProvider[] {
    return [...this.#providers.values()];
  }

  find(name: string): RuntimeProvider | undefined {
    return this.#providers.get(name);
  }

  /** @throws NotFound naming the enabled ones. */
  get(name: string): RuntimeProvider {
    const provider = this.#providers.get(name);
    if (provider !== undefined) return provider;
    throw new NotFound(
      `provider "${name}" does not exist or is not enabled; enabled: ${[...this.#providers.keys()].join(", ")}`,
    );
  }

  default(): RuntimeProvider {
    return this.get(this.#defaultName);
  }

  /** Every provider's health, at most ten seconds old unless `refresh`. */
  health(options: CallOptions & { refresh?: boolean }): Promise<ProviderHealthEntry[]> {
    return Promise.all(this.all.map((provider) => this.healthOf(provider.name, options)));
  }

  /** @throws NotFound for a provider that is not enabled. */
  async healthOf(name: string, options: CallOptions & { refresh?: boolean }): Promise<ProviderHealthEntry> {
    const provider = this.get(name);
    const known = this.#checks.get(name);
    const ageMs =
      known === undefined ? Number.POSITIVE_INFINITY : this.#clock.monotonicMs() - known.startedMs;
    if (known !== undefined && (known.pending || (ageMs < healthKeptMs && options.refresh !== true))) {
      return known.result;
    }
    const check = { startedMs: this.#clock.monotonicMs(), pending: true, result: this.#check(provider) };
    this.#checks.set(name, check);
    try {
      return await check.result;
    } finally {
      check.pending = false;
    }
  }

  /** Bounded by its own deadline and not by one caller's signal: its result is shared. */
  async #check(provider: RuntimeProvider): Promise<ProviderHealthEntry> {
    using deadline = deadlineAfter(checkDeadlineMs);
    const startedMs = this.#clock.monotonicMs();
    const checked = await within(deadline.signal, async () => {
      const result = await provider.check(deadline);
      if (!result.healthy || !provider.capabilities.has("runtime_inventory")) return { result };
      return { result, runtimeCount: (await provider.inventory(deadline)).length };
    });
    const { result, runtimeCount } = checked;
    return {
      name: provider.name,
      healthy: result.healthy,
      default: provider.name === this.#defaultName,
      latencyMs: Math.round(this.#clock.monotonicMs() - startedMs),
      lastChecked: this.#clock.now(),
      ...(result.healthy ? {} : { error: result.error ?? "the check failed without a reason" }),
      notes: result.notes,
      capabilities: [...provider.capabilities],
      ...(runtimeCount === undefined ? {} : { runtimeCount }),
    };
  }
}

type Checked = { result: { healthy: boolean; error?: string; notes: string[] }; runtimeCount?: number };

/** A check that hangs or throws counts as unhealthy. */
async function within(signal: AbortSignal, check: () => Promise<Checked>): Promise<Checked> {
  try {
    return await abortable(check(), signal);
  } catch (error) {
    const message = error instanceof Error ? error.message : String(error);
    return { result: { healthy: false, error: message, notes: [] } };
  }
}
