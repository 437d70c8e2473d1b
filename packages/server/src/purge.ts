import { existsSync } from "node:fs";
import { rm } from "node:fs/promises";
import path from "node:path";
import type { Config } from "./config/config.ts";
import { imageSettings, openImageStore } from "./images.ts";
import { lockDataDir } from "./platform/data-dir-lock.ts";
import { deadlineAfter } from "./platform/deadline.ts";
import { Installation } from "./platform/installation.ts";
import type { Logger } from "./platform/logger.ts";
import { messageOf } from "./platform/message-of.ts";
import { randomIds } from "./platform/random-ids.ts";
import { systemClock } from "./platform/system-clock.ts";
import type { RuntimeProvider } from "./ports/index.ts";
import { providerCandidates } from "./provider-candidates.ts";
import { endGroupsOf } from "./providers/native/index.ts";
import { SqliteStore } from "./stores/sqlite/sqlite-store.ts";

const inventoryDeadlineMs = 30_000;
const destroyDeadlineMs = 60_000;

export interface Purged {
  /** What was ended: `<provider>/<runtime id>`, or a control group. */
  ended: string[];
  /** What could not be ended or asked, and why. */
  left: string[];
}

/**
 * Ends every sandbox of an installation that is stopped; with `remove` its data directory goes too.
 * @throws DataDirLocked while its service runs; ForeignDataDir when what its records name may be another's.
 */
export async function purge(options: { config: Config; remove: boolean; logger: Logger }): Promise<Purged> {
  const { config, logger } = options;
  const { dataDir } = config;
  const purged: Purged = { ended: [], left: [] };
  if (!existsSync(dataDir)) return purged;
  {
    await using opened = new AsyncDisposableStack();
    opened.use(lockDataDir(dataDir));
    const store = opened.use(await SqliteStore.open({ path: config.database.path }));
    const { id } = opened.use(
      await Installation.open({ dataDir, settings: store, newId: randomIds.secret(8) }),
    );
    const images = await openImageStore({ ...imageSettings(config), logger });
    const candidates = await providerCandidates({
      config,
      instanceId: id,
      images,
      logger,
      clock: systemClock,
    });
    for (const candidate of candidates) {
      if (!("provider" in candidate) || candidate.provider.inProcess === true) continue;
      opened.use(candidate.provider);
      // A provider that never ran anything here is not asked: its engine may not even be there.
      if (existsSync(path.join(dataDir, "runtimes", candidate.name)))
        await endRuntimes(candidate.provider, purged);
    }
  }
  if (options.remove && purged.left.length === 0) await rm(dataDir, { recursive: true, force: true });
  return purged;
}

/** Ends what the control groups of an installation hold, when its directory is gone. */
export async function purgeInstance(instance: string): Promise<Purged> {
  return { ended: await endGroupsOf(instance), left: [] };
}

async function endRuntimes(provider: RuntimeProvider, purged: Purged): Promise<void> {
  try {
    using listing = deadlineAfter(inventoryDeadlineMs);
    for (const { runtimeId } of await provider.inventory(listing)) {
      using ending = deadlineAfter(destroyDeadlineMs);
      await provider.destroy(runtimeId, ending);
      purged.ended.push(`${provider.name}/${runtimeId}`);
    }
  } catch (error) {
    purged.left.push(`${provider.name}: ${messageOf(error)}`);
  }
}
