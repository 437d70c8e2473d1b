import { Socket } from "node:net";
import type { Duplex } from "node:stream";
import { deadlineAfter } from "../../platform/deadline.ts";
import type { Logger } from "../../platform/logger.ts";
import type { MadeAhead, RuntimeId, RuntimeSpec } from "../../ports/index.ts";
import { unixDialer } from "../agent/index.ts";
import type { Launcher, LaunchSpec } from "../launcher/index.ts";
import { newPreparedId, PreparedStock } from "../prepared/index.ts";
import type { LaunchGround } from "./launch-ground.ts";
import { type NativeProviderConfig, networkOf } from "./launch-plan.ts";
import type { LaunchedRuntime } from "./launched-runtime.ts";
import {
  fingerprintOf,
  type PreparedSandbox,
  type PreparedShape,
  preparedSpec,
  settledBy,
  shapeKey,
} from "./prepared-shape.ts";
import type { Removals } from "./removals.ts";
import { isOurs, type RuntimeDirectories } from "./runtime-directories.ts";
import type { RuntimeRecord } from "./runtime-record.ts";

const dialMs = 5_000;

/**
 * What a launch is to be told, and what is written down of it.
 * @param groups whose control groups the runtime has, where they are not its own.
 */
type Plan = (
  ground: LaunchGround,
  spec: RuntimeSpec,
  root: LaunchSpec["root"],
  groups?: string,
) => Promise<{ record: RuntimeRecord; launch: LaunchSpec }>;

/**
 * Makes sandboxes of nobody as far as they can be made, and makes them somebody's: docs/decisions/native-prepared.md. Which
 * ones, and when, is its stock's.
 */
export class PreparedSandboxes implements AsyncDisposable {
  readonly #config: NativeProviderConfig;
  readonly #launcher: Launcher;
  readonly #directories: RuntimeDirectories;
  readonly #removals: Removals;
  readonly #plan: Plan;
  readonly #readyToLaunch: () => Promise<LaunchGround>;
  readonly #foundGround: () => Promise<LaunchGround> | undefined;
  readonly #refuseWhenShort: () => Promise<void>;
  readonly #logger: Logger;
  readonly #stock: PreparedStock<PreparedShape, PreparedSandbox>;
  /** Launches and removals. */
  #underWay = 0;
  /** As the last launch found it. */
  #canPrepare = true;

  constructor(options: {
    config: NativeProviderConfig;
    launcher: Launcher;
    directories: RuntimeDirectories;
    removals: Removals;
    plan: Plan;
    readyToLaunch: () => Promise<LaunchGround>;
    /** As far as it was found out. */
    foundGround: () => Promise<LaunchGround> | undefined;
    /** Rejects while the disk has no room for another sandbox. */
    refuseWhenShort: () => Promise<void>;
    logger: Logger;
  }) {
    this.#config = options.config;
    this.#launcher = options.launcher;
    this.#directories = options.directories;
    this.#removals = options.removals;
    this.#plan = options.plan;
    this.#readyToLaunch = options.readyToLaunch;
    this.#foundGround = options.foundGround;
    this.#refuseWhenShort = options.refuseWhenShort;
    this.#logger = options.logger;
    this.#stock = new PreparedStock({
      count: options.config.prepared,
      keyOf: shapeKey,
      site: {
        make: (shape) => this.#make(shape),
        discard: (waiting) => this.#discard(waiting),
        isBusy: () => this.#underWay > 0,
        onFailure: (err) => this.#logger.warn({ err }, "no sandbox could be prepared; it is tried again"),
        onGaveWay: (count, err) =>
          this.#logger.warn({ err, count }, "prepared sandboxes are removed, since a spawn found no room"),
      },
    });
  }

  /** @returns undefined also where none can be: those who look would wait for some. */
  get figures(): MadeAhead | undefined {
    return this.#canPrepare ? this.#stock.figures : undefined;
  }

  /** Until it is disposed of nothing is prepared. */
  busy(): Disposable {
    this.#underWay += 1;
    return {
      [Symbol.dispose]: () => {
        this.#underWay -= 1;
        this.#stock.later();
      },
    };
  }

  /** Somebody lacks what they may hold: see `PreparedStock`. */
  giveWay(sinceMs: number, why: unknown): Promise<boolean> {
    return this.#stock.giveWay(sinceMs, why);
  }

  /** They have ended with the launcher. */
  lose(): void {
    this.#stock.lose();
  }

  /**
   * @param onSocket as of `LaunchSite.launch`.
   * @returns undefined when there is none that fits, or it came to nothing: nothing of it is left then.
   */
  async claim(
    ground: LaunchGround,
    spec: RuntimeSpec,
    root: LaunchSpec["root"],
    onSocket: (record: RuntimeRecord, connection: Duplex) => void,
  ): Promise<LaunchedRuntime | undefined> {
    this.#canPrepare = canPrepare(ground);
    // A probe tries all of a launch, and is no spawn.
    if (isOurs(spec.runtimeId) || !this.#canPrepare) return undefined;
    const claimed = await this.#claim(ground, spec, root, onSocket);
    this.#stock.became(claimed === undefined ? "cold" : "claimed");
    return claimed;
  }

  async #claim(
    ground: LaunchGround,
    spec: RuntimeSpec,
    root: LaunchSpec["root"],
    onSocket: (record: RuntimeRecord, connection: Duplex) => void,
  ): Promise<LaunchedRuntime | undefined> {
    const { runtimeId } = spec;
    // Groups of the pool are elsewhere, and a runtime keeps the range it has.
    if (spec.slot !== undefined) return undefined;
    if (ground.ranges.has(runtimeId)) return undefined;
    const { memoryMb, vcpus } = spec;
    const shape = { root, network: networkOf(spec, this.#config), memoryMb, vcpus };
    const found = this.#stock.take(shape, () => fingerprintOf(root, ground.agent));
    if (found === undefined) return undefined;
    try {
      const range = ground.ranges.give(found.name, runtimeId);
      const planned = await this.#plan(ground, spec, root, found.name);
      if (settledBy(planned.launch) !== found.settled)
        throw new Error("it was made otherwise than it would be now");
      const { dir, record, hostname, limits } = planned.launch;
      const from = this.#directories.path(found.name);
      const claim = this.#launcher.claim({ prepared: from, dir, record, range, owned: { hostname, limits } });
      found.connection.removeAllListeners();
      // Where the caller has left meanwhile nobody speaks over it: that its agent ended before taking it is told to nobody else then.
      found.connection.on("error", () => undefined);
      onSocket(planned.record, found.connection);
      const { stages } = await claim;
      return { record: planned.record, stages };
    } catch (error) {
      found.connection.destroy();
      this.#logger.info({ err: error, runtime_id: runtimeId }, "a prepared sandbox could not be claimed");
      ground.ranges.doubt(found.name, runtimeId);
      await this.#removals.discard(ground, found.name as RuntimeId);
      await this.#removals.remove(ground, runtimeId);
      return undefined;
    }
  }

  async #make(shape: PreparedShape): Promise<PreparedSandbox | undefined> {
    const ground = await this.#readyToLaunch();
    if (!canPrepare(ground)) return undefined;
    await this.#directories.inSight();
    await this.#refuseWhenShort();
    const name = newPreparedId();
    const madeOf = fingerprintOf(shape.root, ground.agent);
    // An image that was removed, say: who spawns of it again wants it prepared again.
    if (madeOf === undefined) return undefined;
    let settled: string;
    try {
      const { launch } = await this.#plan(ground, preparedSpec(name, shape), shape.root);
      settled = settledBy(launch);
      await this.#launcher.prepare({ ...launch, record: { ...launch.record, rootfs: null } });
    } catch (error) {
      await this.#removals.discard(ground, name);
      throw error;
    }
    if (madeOf === fingerprintOf(shape.root, ground.agent)) {
      const connection = await this.#dialAhead(ground, name);
      const ended = new AbortController();
      if (connection.destroyed) ended.abort();
      else connection.once("close", () => ended.abort());
      return { name, madeOf, settled, connection, ended: ended.signal };
    }
    await this.#removals.discard(ground, name);
    throw new Error("what sandboxes are made of changed meanwhile");
  }

  /** Its agent answers once it is somebody's; until then this tells whether it is there. */
  async #dialAhead(ground: LaunchGround, name: RuntimeId): Promise<Duplex> {
    using deadline = deadlineAfter(dialMs);
    try {
      const connection = await unixDialer(() => this.#directories.socket(name))(deadline);
      connection.on("error", () => undefined);
      // A sandbox of nobody keeps no process alive.
      if (connection instanceof Socket) connection.unref();
      return connection;
    } catch (error) {
      await this.#removals.discard(ground, name);
      throw error;
    }
  }

  async #discard({ name, connection }: PreparedSandbox): Promise<void> {
    connection.destroy();
    const ground = await this.#foundGround()?.catch(() => undefined);
    if (ground === undefined) return;
    await this.#removals.removeOrLeave(name, async () => {
      // What is out of sight is not gone, and nobody would look for it before the next start.
      await this.#directories.inSight();
      await this.#removals.remove(ground, name as RuntimeId, { once: true });
    });
  }

  /** All that wait are gone then. */
  [Symbol.asyncDispose](): Promise<void> {
    return this.#stock[Symbol.asyncDispose]();
  }
}

/** Where roots are copies sandboxes share their ids, and without root none is worth it. */
function canPrepare({ rooted, shifted, ways }: LaunchGround): boolean {
  return rooted && shifted === undefined && !ways.rootCopied;
}
