import { Value } from "typebox/value";
import { linesOf, TooLongLine } from "../../platform/lines-of.ts";
import type { Logger } from "../../platform/logger.ts";
import {
  BadRequest,
  type CallOptions,
  type ImageConfig,
  NotFound,
  refuseRegistry,
  Unavailable,
} from "../../ports/index.ts";
import { refuseInnerRegistry } from "../../pulls/inner-registry.ts";
import type { PullLimits } from "../../pulls/pull-turns.ts";
import { SharedPulls } from "../../pulls/shared-pulls.ts";
import { type EngineClient, TooLongAnswer } from "./engine-client.ts";
import { asProviderError, isRefusal } from "./engine-errors.ts";
import { ImageInspection, PullLine } from "./engine-shapes.ts";

/** How often the progress of a pull is logged, milliseconds. */
const progressEveryMs = 2_000;
/** Of a line that tells how a pull goes, or why it does not; and of the layers, and what is told of each, that are kept for the log. */
const longestLineBytes = 65_536;
const mostLayers = 256;
const longestProgress = 256;
/**
 * The engine repeats these of an image in every list, description and event of its containers; what images hold of them is a
 * tenth of it.
 */
const mostRepeatedKb = 64;
/** Of what the engine tells of an image in all: its layers and names too. */
const largestInspectionBytes = 512 * 1024;
/** The engine makes each of them for each container; images that mean well have a handful. */
const mostVolumes = 64;

/** Images of an engine: what is in them, and getting those that are missing. */
export class EngineImages {
  readonly #engine: EngineClient;
  readonly #pullPolicy: "missing" | "never";
  readonly #allowedRegistries: readonly string[];
  readonly #logger: Logger;
  readonly #pulls: SharedPulls<void>;
  readonly #closing = new AbortController();

  constructor(options: {
    engine: EngineClient;
    pullPolicy: "missing" | "never";
    allowedRegistries: readonly string[];
    pulls: PullLimits;
    logger: Logger;
  }) {
    this.#pulls = new SharedPulls(options.pulls);
    this.#allowedRegistries = options.allowedRegistries;
    this.#engine = options.engine;
    this.#pullPolicy = options.pullPolicy;
    this.#logger = options.logger;
  }

  /** Ends pulls under way. */
  close(reason: Error): void {
    this.#closing.abort(reason);
  }

  /**
   * @returns what of the image's configuration applies, or undefined when the engine has no such image.
   * @throws BadRequest when it is larger than an image's may be.
   */
  async config(name: string, options: CallOptions): Promise<ImageConfig | undefined> {
    return (await this.inspect(name, options))?.config;
  }

  /** The same with its id, which no other image has. */
  async inspect(
    name: string,
    options: CallOptions,
  ): Promise<{ id: string; config: ImageConfig } | undefined> {
    try {
      const inspection = await this.#engine.call(
        {
          method: "GET",
          path: `/images/${name}/json`,
          signal: options.signal,
          largestBytes: largestInspectionBytes,
        },
        ImageInspection,
      );
      refuseLarge(name, inspection);
      return { id: inspection.Id, config: imageConfig(inspection) };
    } catch (error) {
      if (error instanceof TooLongAnswer)
        throw tooLarge(name, `more than ${largestInspectionBytes / 1024} KB`, { cause: error });
      if (isRefusal(error, 404)) return undefined;
      throw asProviderError(`look image ${name} up`, error);
    }
  }

  /**
   * Gets an image that is not there, with progress in the log: once for all who wait for it, until the last of them leaves.
   * @throws NotFound when the policy forbids it or no registry gives it; Forbidden for a registry that is not allowed, or is
   *   inside this network and not named; Unavailable when it takes too long or at a stop.
   */
  async pull(name: string, options: CallOptions & { owner?: string | undefined }): Promise<void> {
    if (this.#pullPolicy === "never") {
      throw new NotFound(
        `image ${name} is not on the Docker Engine and images.pull_policy is never; get it with: docker pull ${name}`,
        { what: "image" },
      );
    }
    if (name.startsWith("sha256:"))
      throw new NotFound(`image ${name} is not on the Docker Engine`, { what: "image" });
    refuseRegistry(name, this.#allowedRegistries);
    const { owner = "" } = options;
    try {
      const signal = AbortSignal.any([options.signal, this.#closing.signal]);
      await this.#pulls.run(name, { owner, signal }, async (inTime) => {
        // In its turn: a client may name any number of registries at once, whose name servers may be slow on purpose.
        await refuseInnerRegistry(name, this.#allowedRegistries);
        inTime.throwIfAborted();
        await this.#pullOnce(name, { signal: inTime });
      });
    } catch (error) {
      options.signal.throwIfAborted();
      if (!this.#closing.signal.aborted) throw error;
      throw new Unavailable(`pulling image ${name} was given up: shutting down`, { cause: error });
    }
  }

  async #pullOnce(name: string, { signal }: CallOptions): Promise<void> {
    const startedAt = performance.now();
    this.#logger.info({ image: name }, `pulling image ${name}`);
    try {
      await this.#readPull(name, signal);
    } catch (error) {
      signal.throwIfAborted();
      const isUnreadable = error instanceof TooLongLine || error instanceof SyntaxError;
      if (!(error instanceof PullFailed || isUnreadable || isRefusal(error))) throw error;
      // One text for all: what the registry's host answered, and whether there is one, is not the client's to know.
      this.#logger.warn(
        { event: "image.pull_failed", outcome: "failed", image: name, err: error },
        "an image could not be pulled",
      );
      throw new NotFound(
        `image ${name} is not on the Docker Engine and could not be pulled; the service's log says why. Try: docker pull ${name}`,
        { what: "image", cause: error },
      );
    }
    const durationMs = Math.round(performance.now() - startedAt);
    const line = { image: name, duration_ms: durationMs };
    this.#logger.info({ event: "image.pulled", outcome: "ok", ...line }, "an image was pulled");
  }

  async #readPull(name: string, signal: AbortSignal): Promise<void> {
    const stream = await this.#engine.stream({
      method: "POST",
      path: "/images/create",
      query: { fromImage: name },
      signal,
    });
    const layers = new Map<string, string>();
    let loggedAt = performance.now();
    for await (const text of linesOf(stream, { longestBytes: longestLineBytes })) {
      const line: unknown = text.trim() === "" ? {} : JSON.parse(text);
      if (!Value.Check(PullLine, line)) continue;
      if (line.error !== undefined) throw new PullFailed(line.error);
      const { id, status = "", progress = "" } = line;
      const isKnown = id !== undefined && (layers.has(id) || layers.size < mostLayers);
      if (isKnown && id.length + status.length + progress.length <= longestProgress)
        layers.set(id, `${status} ${progress}`.trim());
      if (performance.now() - loggedAt < progressEveryMs) continue;
      loggedAt = performance.now();
      this.#logger.info({ image: name, layers: Object.fromEntries(layers) }, `still pulling image ${name}`);
    }
    signal.throwIfAborted();
  }
}

/** The engine began a pull and told of its failure in the stream. */
class PullFailed extends Error {}

function refuseLarge(name: string, { Config: config }: ImageInspection): void {
  const { Labels, ExposedPorts, Env, Volumes } = config ?? {};
  const bytes = Buffer.byteLength(JSON.stringify({ Labels, ExposedPorts, Env, Volumes }));
  if (bytes > mostRepeatedKb * 1024) throw tooLarge(name, `${Math.ceil(bytes / 1024)} KB`);
  const volumes = typeof Volumes === "object" && Volumes !== null ? Object.keys(Volumes).length : 0;
  if (volumes > mostVolumes)
    throw new BadRequest(
      `image ${name} declares ${volumes} volumes; it may have ${mostVolumes}: build it with fewer`,
    );
}

function tooLarge(name: string, size: string, options?: ErrorOptions): BadRequest {
  return new BadRequest(
    `image ${name} has ${size} of configuration; its labels, exposed ports, environment and volumes may take ${mostRepeatedKb} KB: build it with fewer`,
    options,
  );
}

function imageConfig({ Config: config }: ImageInspection): ImageConfig {
  const env: Record<string, string> = {};
  const entries: unknown = config?.Env;
  for (const entry of Array.isArray(entries) ? entries : []) {
    if (typeof entry !== "string") continue;
    const at = entry.indexOf("=");
    if (at > 0) env[entry.slice(0, at)] = entry.slice(at + 1);
  }
  return {
    env,
    ...(config?.User ? { user: config.User } : {}),
    ...(config?.WorkingDir ? { workdir: config.WorkingDir } : {}),
  };
}
