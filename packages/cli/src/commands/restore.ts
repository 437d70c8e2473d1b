import { type ConfigFlags, loadLocalConfig } from "./load-config.ts";

/** Gives a copied or restored data directory an identity of its own. */
export async function restore(flags: ConfigFlags & { newIdentity?: boolean }): Promise<void> {
  const { config } = await loadLocalConfig(flags);
  const { restore: renew } = await import("@alcove/server/restore");
  const { former, left } = await renew({ config, evenOriginal: flags.newIdentity === true });
  process.stdout.write(`${config.dataDir} is an installation of its own now\n`);
  if (former !== undefined)
    process.stdout.write(
      `it was ${former}: sandboxes of that name are not touched; where nobody else has them, ` +
        `"alcove purge --instance ${former} --yes" ends them\n`,
    );
  for (const folder of left)
    process.stderr.write(`alcove: ${folder} could not be removed; remove it as root\n`);
}
