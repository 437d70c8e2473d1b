import { type ConfigFlags, loadLocalConfig } from "./load-config.ts";

/** Copies database and identity of an installation, while its service runs. */
export async function backup(folder: string, flags: ConfigFlags): Promise<void> {
  const { config } = await loadLocalConfig(flags);
  const { backup: copy } = await import("@alcove/server/backup");
  const { notNoted } = await copy({ config, folder });
  process.stdout.write(`${folder}\n`);
  if (notNoted !== undefined)
    process.stderr.write(
      `alcove: the backup is whole, but its time could not be left for metrics and doctor: ${notNoted}\n`,
    );
}
