import { type ChildProcess, spawn } from "node:child_process";
import { once } from "node:events";
import { existsSync, readdirSync } from "node:fs";
import { join } from "node:path";
import { projectRoot } from "./agent-binary.ts";

const folder = join(projectRoot, ".cache", "earlier-release");

/** Releases that `scripts/earlier-release.mjs` has laid out: their folders, by the commits' beginnings. */
export function earlierReleases(): { commit: string; folder: string }[] {
  if (!existsSync(folder)) return [];
  return readdirSync(folder)
    .map((commit) => ({ commit, folder: join(folder, commit) }))
    .filter((release) => existsSync(join(release.folder, ".complete")));
}

const program = `
  const { serve } = await import("./packages/server/src/main.ts");
  const { loadConfig } = await import("./packages/server/src/config/load.ts");
  const { silentLogger } = await import("./packages/server/src/platform/logger.ts");
  const service = await serve({ config: await loadConfig({ env: process.env, cwd: process.cwd() }), logger: silentLogger });
  await service.ready;
  console.log(service.url);
  process.stdin.resume().on("end", () => process.exit(1));
`;

/** An earlier release's service, as a process that a test may kill. It ends with the test's process. */
export class EarlierService implements AsyncDisposable {
  readonly url: string;
  readonly #child: ChildProcess;

  static async start(release: string, env: Record<string, string>): Promise<EarlierService> {
    const child = spawn(process.execPath, ["--input-type=module", "--eval", program], {
      cwd: release,
      env: { PATH: process.env.PATH ?? "", ...env },
      stdio: ["pipe", "pipe", "pipe"],
    });
    let said = "";
    const { promise: url, resolve, reject } = Promise.withResolvers<string>();
    child.stderr.on("data", (chunk) => {
      said += String(chunk);
    });
    child.stdout.on("data", (chunk) => {
      const found = /http:\S+/.exec(String(chunk));
      if (found !== null) resolve(found[0]);
    });
    child.once("exit", () => reject(new Error(`the earlier service ended: ${said}`)));
    return new EarlierService(child, await url);
  }

  private constructor(child: ChildProcess, url: string) {
    this.#child = child;
    this.url = url;
  }

  /** As a crash or a hurried upgrade does it. */
  async kill(): Promise<void> {
    if (this.#child.exitCode !== null || this.#child.signalCode !== null) return;
    const ended = once(this.#child, "exit");
    this.#child.kill("SIGKILL");
    await ended;
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.kill();
  }
}
