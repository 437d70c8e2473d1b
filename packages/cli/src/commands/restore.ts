import { type ConfigFlags, loadLocalConfig } from "./load-config.ts";

/** Gives a copied or restored data directory an identity of its own. */
export async function restore(flags: ConfigFlags): Promise<void> {
  const { config } = await loadLocalConfig(flags);
  const { restore: renew } = await import("@alcove/server/restore");
  const { left } = await renew({ config });
  process.stdout.write(`${config.dataDir} is an installation of its own now\n`);
  for (const folder of left)
    process.stderr.write(`alcove: ${folder} could not be removed; remove it as root\n`);
}
