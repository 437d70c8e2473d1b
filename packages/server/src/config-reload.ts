import { changes } from "./config/changes.ts";
import type { Config } from "./config/config.ts";
import { ConfigError } from "./config/errors.ts";
import { warningsOfKeys } from "./config/weak-keys.ts";
import type { Logger } from "./platform/logger.ts";
import type { Clock } from "./ports/clock.ts";

/**
 * Reads the configuration again while the service runs. Either all of it that can change applies, or nothing does: then
 * `failedAt` is set until one is taken up, because the keys that were to be replaced go on counting meanwhile.
 */
export class ConfigReload {
  readonly #parts: ConfigReloadParts;
  readonly #started: Config;
  #applied: Config;
  #failedAt: Date | undefined;

  /** @param parts.config what the service was started with; whoever applies it reads it from this object, each time. */
  constructor(parts: ConfigReloadParts) {
    this.#parts = parts;
    this.#started = structuredClone(parts.config);
    this.#applied = this.#started;
  }

  /** When the configuration could not be read; undefined: what was asked for last applies. */
  get failedAt(): Date | undefined {
    return this.#failedAt;
  }

  /** Does not fail. One call at a time. */
  async again(read: () => Promise<Config>): Promise<void> {
    const { clock, logger } = this.#parts;
    try {
      this.#apply(await read());
      this.#failedAt = undefined;
    } catch (error) {
      this.#failedAt = clock.now();
      const why = error instanceof ConfigError ? { error: error.message } : { err: error };
      logger.error(why, "the configuration cannot be read; nothing has changed");
    }
  }

  #apply(changed: Config): void {
    const { config, keys, logger, sandboxes } = this.#parts;
    const started = this.#started;
    const { takenOver, needRestart } = changes(changed, { started, applied: this.#applied });
    this.#applied = changed;
    logger.level = changed.logging.level;
    keys.replaceConfigured(changed.auth);
    const accessChanged = takenOver.some((key) => key.startsWith("auth."));
    if (accessChanged) for (const warning of warningsOfKeys(changed)) logger.warn(warning);
    Object.assign(config.defaults, changed.defaults);
    Object.assign(config.rateLimit, changed.rateLimit);
    sandboxes.limitsChanged();
    const { apiKey, adminApiKey, keys: others } = changed.auth;
    if (accessChanged && apiKey === "" && adminApiKey === "" && others.length === 0)
      logger.warn(
        "the keys of the configuration are gone, which applies: nobody is let in by it; give a key and send SIGHUP again, " +
          "or restart the service if it is to run without keys",
      );
    if (!started.auth.enabled && changed.auth.enabled)
      logger.warn(
        "auth was switched on, which needs a restart: until then everybody who reaches the service is let in",
      );
    if (needRestart.length > 0)
      logger.warn({ settings: needRestart }, `${needRestart.join(", ")} changed too; that needs a restart`);
    logger.info(
      { settings: takenOver },
      `the configuration was read again: ${takenOver.length > 0 ? `${takenOver.join(", ")} changed and apply` : "nothing that applies at once has changed"}`,
    );
  }
}

export interface ConfigReloadParts {
  config: Config;
  clock: Pick<Clock, "now">;
  logger: Logger;
  keys: { replaceConfigured(auth: Config["auth"]): void };
  sandboxes: { limitsChanged(): void };
}
