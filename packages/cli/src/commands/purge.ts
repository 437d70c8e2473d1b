import { ExitWith, exitCodes, UsageError } from "../exit-codes.ts";
import { type ConfigFlags, loadLocalConfig } from "./load-config.ts";

/** Ends what a stopped installation left running. */
export async function purge(
  flags: ConfigFlags & { instance?: string; remove?: boolean; yes?: boolean },
): Promise<void> {
  const { config } = await loadLocalConfig(flags);
  const what = flags.instance === undefined ? config.dataDir : `installation ${flags.instance}`;
  if (flags.yes !== true)
    throw new UsageError(
      `this ends every sandbox of ${what}${flags.remove ? " and removes the directory and its database" : ""}; add --yes if it should`,
    );
  const [server, { createLogger }] = await Promise.all([
    import("@alcove/server/purge"),
    import("@alcove/server/logger"),
  ]);
  const logger = await createLogger({ level: "error", format: config.logging.format });
  const { ended, left } =
    flags.instance === undefined
      ? await server.purge({ config, remove: flags.remove === true, logger })
      : await server.purgeInstance(flags.instance, { config });
  for (const name of ended) process.stdout.write(`${name}\n`);
  for (const reason of left) process.stderr.write(`alcove: left: ${reason}\n`);
  if (left.length > 0) throw new ExitWith(exitCodes.failed);
}
