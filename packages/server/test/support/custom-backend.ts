import { type ChildProcess, spawn } from "node:child_process";
import { once } from "node:events";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import path from "node:path";
import { createInterface } from "node:readline";
import { fileURLToPath } from "node:url";
import { silentLogger } from "../../src/platform/logger.ts";
import { systemClock } from "../../src/platform/system-clock.ts";
import { CustomProvider } from "../../src/providers/custom/index.ts";

/** A backend of the examples in a process of its own, and providers that use it. */
export class ExampleBackend implements AsyncDisposable {
  static readonly key = "key-of-the-backend";
  readonly url: string;
  readonly #child: ChildProcess;
  readonly #folder: string;

  private constructor(options: { url: string; child: ChildProcess; folder: string }) {
    this.url = options.url;
    this.#child = options.child;
    this.#folder = options.folder;
  }

  static async start(file: "backend.mjs" | "minimal.mjs"): Promise<ExampleBackend> {
    const folder = await mkdtemp(path.join(tmpdir(), "custom-backend-"));
    const script = fileURLToPath(new URL(`../../../../examples/custom-backend/${file}`, import.meta.url));
    const child = spawn(process.execPath, [script, "0", folder], {
      env: { PATH: process.env.PATH ?? "", BACKEND_KEY: ExampleBackend.key },
      stdio: ["ignore", "pipe", "inherit"],
    });
    if (child.stdout === null) throw new Error("the backend has no output");
    const [line] = (await once(createInterface(child.stdout), "line")) as [string];
    const port = /\d+$/.exec(line)?.[0];
    return new ExampleBackend({ url: `http://127.0.0.1:${port}`, child, folder });
  }

  /** As after a check: it knows what the backend announces. */
  async open(instanceId = "one"): Promise<CustomProvider> {
    const provider = new CustomProvider({
      config: {
        defaultImage: "host",
        url: this.url,
        apiKey: ExampleBackend.key,
        authHeader: "bearer",
        networkMode: "none",
        timeoutMs: 20_000,
      },
      instanceId,
      noteKey: new Uint8Array(32),
      clock: systemClock,
      logger: silentLogger,
    });
    await provider.check({ signal: AbortSignal.timeout(10_000) });
    return provider;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    if (this.#child.exitCode === null) {
      const ended = once(this.#child, "exit");
      this.#child.kill();
      await ended;
    }
    await rm(this.#folder, { recursive: true, force: true });
  }
}
