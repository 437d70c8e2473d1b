import path from "node:path";
import type { Config } from "../../src/config/config.ts";
import { loadConfig } from "../../src/config/load.ts";

/** Of a whole service on mock alone, with its data below a folder and any free port. */
export function mockConfig(home: string, env: Record<string, string>): Config {
  return loadConfig({
    cwd: home,
    env: {
      ALCOVE_DATA_DIR: path.join(home, "data"),
      ALCOVE_SERVER_PORT: "0",
      ALCOVE_PROVIDERS_DEFAULT: "mock",
      ALCOVE_PROVIDERS_NATIVE_ENABLED: "false",
      ALCOVE_PROVIDERS_DOCKER_ENABLED: "false",
      ...env,
    },
  });
}
