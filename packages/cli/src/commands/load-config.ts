import type { LoadedConfig } from "@alcove/server/config";
import { installedRelease, systemConfigFile } from "../release.ts";

export interface ConfigFlags {
  config?: string;
  host?: string;
  port?: string;
  dataDir?: string;
  provider?: string;
  set?: Record<string, string>;
}

/** The configuration of this machine, with what the command line says on top. @throws ConfigError */
export async function loadLocalConfig(flags: ConfigFlags): Promise<LoadedConfig> {
  const { loadConfigWithSources } = await import("@alcove/server/config");
  const overrides = new Map<string, { text: string; source: string }>();
  for (const [key, text] of Object.entries(flags.set ?? {}))
    overrides.set(key, { text, source: `--set ${key}` });
  const short = [
    ["server.host", flags.host, "--host"],
    ["server.port", flags.port, "--port"],
    ["data_dir", flags.dataDir, "--data-dir"],
    ["providers.default", flags.provider, "--provider"],
  ] as const;
  for (const [key, text, source] of short) if (text !== undefined) overrides.set(key, { text, source });
  return loadConfigWithSources({
    file: flags.config,
    env: process.env,
    cwd: process.cwd(),
    overrides,
    terminal: process.stderr.isTTY === true,
    ...(installedRelease() === undefined ? {} : { systemFile: systemConfigFile }),
  });
}
