import { readdir, readFile, writeFile } from "node:fs/promises";
import { join } from "node:path";
import type { CgroupSpec } from "../launcher/index.ts";

/** The longest period and the least of it that the kernel takes: a thousandth of a processor. */
const slowPeriodUs = 1_000_000;
const slowQuotaUs = 1_000;
/** Of groups that the launcher makes. */
const periodUs = 100_000;
/** What could not be given back, for want of a descriptor, say, is tried again after so long. */
const againMs = 1_000;
/** Of each group, by its path: a later attempt takes the place of the one before. */
const givingBack = new Map<string, NodeJS.Timeout>();
/** Whoever lets them stand still may take longer over what it looks at: so long, and they go on. */
const longestMs = 1_000;

/** Processor time of the commands of a sandbox. */
interface Share {
  quotaUs: number;
  periodUs: number;
}

/**
 * The commands of a sandbox, by their control group. While they stand still each of them is where it was: one that goes on in a child
 * again and again is gone otherwise before anybody has looked at what it has open. They are not stopped, which programs would notice,
 * but have next to no processor time.
 */
export class StandingStill {
  readonly #cgroup: CgroupSpec;
  readonly #vcpus: number;

  /** @param vcpus of its commands. */
  constructor(cgroup: CgroupSpec, vcpus: number) {
    this.#cgroup = cgroup;
    this.#vcpus = vcpus;
  }

  /** @returns their processes, as the host sees them. */
  async processes(): Promise<number[]> {
    const group = commandsOf(this.#cgroup, "pids");
    const entries = await readdir(group, { withFileTypes: true });
    const groups = entries.filter((entry) => entry.isDirectory()).map(({ name }) => join(group, name));
    const texts = await Promise.all(
      [group, ...groups].map((each) => readFile(join(each, "cgroup.procs"), "latin1").catch(() => "")),
    );
    return texts.flatMap((text) =>
      text
        .split("\n")
        .filter((line) => line !== "")
        .map(Number),
    );
  }

  /** Until what it returns is disposed of; with a service that ends meanwhile, until `goOn`. */
  async begin(): Promise<AsyncDisposable> {
    const present = await this.#share();
    // Left by one that was not given back: it must not become what they have for good.
    const share = present.periodUs === slowPeriodUs ? this.#usual : present;
    try {
      await this.#setShare({ quotaUs: slowQuotaUs, periodUs: slowPeriodUs });
    } catch (error) {
      // With v1 half of it may have been written.
      await this.#giveBack(share);
      throw error;
    }
    const latest = setTimeout(() => void this.#giveBack(share).catch(() => undefined), longestMs).unref();
    return {
      [Symbol.asyncDispose]: () => {
        clearTimeout(latest);
        return this.#giveBack(share);
      },
    };
  }

  async goOn(): Promise<void> {
    if ((await this.#share()).periodUs === slowPeriodUs) await this.#giveBack(this.#usual);
  }

  get #usual(): Share {
    return { quotaUs: Math.max(1_000, Math.floor(this.#vcpus * periodUs)), periodUs };
  }

  /** Again and again until they have it, or are gone. Rejects when the first time fails. */
  async #giveBack(share: Share): Promise<void> {
    const group = commandsOf(this.#cgroup, "cpu");
    clearTimeout(givingBack.get(group));
    givingBack.delete(group);
    try {
      await this.#setShare(share);
    } catch (error) {
      if (isGone(error)) return;
      clearTimeout(givingBack.get(group));
      const again = setTimeout(() => void this.#giveBack(share).catch(() => undefined), againMs).unref();
      givingBack.set(group, again);
      throw error;
    }
  }

  async #share(): Promise<Share> {
    const group = commandsOf(this.#cgroup, "cpu");
    const read = (file: string) => readFile(join(group, file), "latin1");
    const texts =
      this.#cgroup.version === 2
        ? (await read("cpu.max")).split(" ")
        : [await read("cpu.cfs_quota_us"), await read("cpu.cfs_period_us")];
    const [quotaUs = Number.NaN, period = Number.NaN] = texts.map(Number);
    if (!(quotaUs > 0 && period > 0)) throw new Error(`${group} has no limit of processor time`);
    return { quotaUs, periodUs: period };
  }

  /** With v1 one after the other, so that neither is ever more than the groups around it have. */
  async #setShare(share: Share): Promise<void> {
    const group = commandsOf(this.#cgroup, "cpu");
    if (this.#cgroup.version === 2)
      return writeFile(join(group, "cpu.max"), `${share.quotaUs} ${share.periodUs}`);
    const quota = () => writeFile(join(group, "cpu.cfs_quota_us"), String(share.quotaUs));
    const period = () => writeFile(join(group, "cpu.cfs_period_us"), String(share.periodUs));
    for (const write of share.periodUs === slowPeriodUs ? [period, quota] : [quota, period]) await write();
  }
}

function commandsOf({ version, dirs }: CgroupSpec, controller: "cpu" | "pids"): string {
  const name = version === 2 ? "unified" : controller;
  return join(dirs.find((group) => group.controller === name)?.path ?? "", "execs");
}

function isGone(error: unknown): boolean {
  const code = error instanceof Error && "code" in error ? error.code : undefined;
  return code === "ENOENT" || code === "ENODEV";
}
