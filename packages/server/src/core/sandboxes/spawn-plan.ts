import {
  formatDuration,
  imageNamePattern,
  leastMemoryMb,
  longestImageName,
  mostLabelAndEnvBytes,
  mostMemoryMb,
  mostMetadataBytes,
  mostVcpus,
  sandboxNamePattern,
} from "@alcove/wire";
import { BadRequest, type NetworkMode, ResourceLimit, type RuntimeProvider } from "../../ports/index.ts";
import { checkEnvironment, checkUser, checkWorkdir } from "../exec/command-rules.ts";
import { parseOwnerId } from "../owners.ts";
import type { Pool } from "../pool/pool.ts";
import type { Limits, OwnerLimits } from "../quotas/limits.ts";
import type { SandboxDefaults } from "../quotas/sandbox-defaults.ts";

/** What a client asks for; what it left out is absent. */
export interface SpawnInput {
  /** Unique among the owner's living sandboxes. */
  name?: string;
  image?: string;
  provider?: string;
  memoryMb?: number;
  vcpus?: number;
  ttlMs?: number;
  metadata?: Record<string, string>;
  ownerId?: string;
  env?: Record<string, string>;
  user?: string;
  workdir?: string;
  network?: NetworkMode;
  template?: string;
}

/** A request with every default filled in and every rule kept. */
export interface SpawnPlan {
  provider: RuntimeProvider;
  image: string;
  memoryMb: number;
  vcpus: number;
  /** As asked for; its row has what applies when it gets its place. */
  ttlMs: number | undefined;
  ownerId: string;
  name: string | null;
  metadata: Record<string, string>;
  env: Record<string, string>;
  user: string | null;
  workdir: string | null;
  network: NetworkMode | null;
}

const imageName = new RegExp(imageNamePattern);
const sandboxName = new RegExp(`^${sandboxNamePattern}$`);

/** Time to live without a limit: 100 years, the longest duration that is read. */
export const longestTtlMs = 100 * 366 * 24 * 3_600_000;

/** @throws BadRequest for a field that makes no sense, ResourceLimit for a ttl above the maximum. */
export function planSpawn(
  input: Omit<SpawnInput, "template">,
  provider: RuntimeProvider,
  { defaults, limits, pool }: { defaults: SandboxDefaults; limits: Limits; pool: Pool },
): SpawnPlan {
  const ownerId = parseOwnerId(input.ownerId);
  checkSpawn(input);
  const {
    name,
    image,
    // Chosen before: it is `provider`.
    provider: _chosen,
    memoryMb,
    vcpus,
    ttlMs,
    metadata,
    ownerId: _owner,
    env,
    user,
    workdir,
    network,
    ...rest
  } = pool.enabled ? pool.part(input, { ownerId, provider, largest: limits.largest }) : input;
  rest satisfies Record<string, never>;
  const size = { memoryMb: memoryMb ?? defaults.memoryMb, vcpus: vcpus ?? defaults.vcpus };
  checkSize(size, limits.largest);
  spawnTtl({ ttlMs, ownerId }, { defaults, limits });
  return {
    provider,
    image: checkImage(image ?? provider.defaultImage),
    ...size,
    ttlMs,
    ownerId,
    name: name ?? null,
    metadata: { ...metadata },
    env: { ...env },
    user: user || null,
    workdir: workdir || null,
    // Written down, because the sandbox keeps it when the configuration is another one.
    network: network ?? (provider.settings().network_mode === "host" ? "host" : null),
  };
}

/** Checks what a request says by itself, limits and provider left out. @throws BadRequest naming the field. */
export function checkSpawn(input: Omit<SpawnInput, "template" | "ownerId">): void {
  const { name, image, memoryMb, vcpus, ttlMs, env = {}, metadata = {}, user, workdir } = input;
  if (name !== undefined) checkName(name);
  checkWeight(env, metadata);
  if (image !== undefined) checkImage(image);
  if (memoryMb !== undefined) checkCount("memory_mb", memoryMb, leastMemoryMb, mostMemoryMb);
  if (vcpus !== undefined) checkCount("vcpus", vcpus, 1, mostVcpus);
  if (ttlMs !== undefined) checkTtl(ttlMs, { maxTtlMs: 0 });
  checkEnvironment("env", env);
  if (user) checkUser(user);
  if (workdir) checkWorkdir(workdir);
}

/** What no machine has is no matter of waiting. @param largest 0: no limit. */
function checkSize(size: { memoryMb: number; vcpus: number }, largest: typeof size): void {
  if (largest.memoryMb > 0 && size.memoryMb > largest.memoryMb) {
    throw new BadRequest(
      `memory_mb ${size.memoryMb} is more than there is: a sandbox can have ${largest.memoryMb} MB (defaults.max_memory_mb, else the machine's)`,
    );
  }
  if (largest.vcpus > 0 && size.vcpus > largest.vcpus) {
    throw new BadRequest(
      `vcpus ${size.vcpus} is more than there are: a sandbox can have ${largest.vcpus} (defaults.max_vcpus, else the machine's)`,
    );
  }
}

/**
 * @returns the time to live of a spawn by the limits as they stand now; a default above the maximum is cut to it.
 *   docs/api/sandboxes.md.
 * @throws as `checkTtl`.
 */
export function spawnTtl(
  { ttlMs, ownerId }: Pick<SpawnPlan, "ttlMs" | "ownerId">,
  { defaults, limits }: { defaults: Pick<SandboxDefaults, "ttlMs">; limits: Limits },
): number {
  const applied = limits.current(ownerId);
  if (ttlMs !== undefined) return checkTtl(ttlMs, applied);
  return applied.maxTtlMs > 0 ? Math.min(defaults.ttlMs, applied.maxTtlMs) : defaults.ttlMs;
}

/** @throws BadRequest when it is not positive, ResourceLimit when it is above `max_ttl`. */
export function checkTtl(
  ttlMs: number,
  { maxTtlMs, ttlQuotaOf }: Pick<OwnerLimits, "maxTtlMs" | "ttlQuotaOf">,
): number {
  if (!Number.isFinite(ttlMs) || ttlMs <= 0) {
    throw new BadRequest("ttl must be longer than 0s; leave it out for the default");
  }
  if (maxTtlMs > 0 && ttlMs > maxTtlMs) {
    const bound =
      ttlQuotaOf === undefined
        ? "defaults.max_ttl"
        : `max_ttl of the quota of owner ${JSON.stringify(ttlQuotaOf)}`;
    throw new ResourceLimit(
      `ttl ${formatDuration(ttlMs)} is above the maximum of ${formatDuration(maxTtlMs)} (${bound})`,
      { details: { reason: "max_ttl" } },
    );
  }
  return Math.min(ttlMs, longestTtlMs);
}

function checkCount(name: string, value: number, least: number, most: number): number {
  if (!Number.isInteger(value) || value < least || value > most) {
    throw new BadRequest(`${name} must be a whole number from ${least} to ${most}, not ${value}`);
  }
  return value;
}

/** @throws BadRequest for a name that no sandbox can have. */
export function checkName(name: string): string {
  if (sandboxName.test(name)) return name;
  throw new BadRequest(
    `name ${JSON.stringify(name.slice(0, 80))} must be 1 to 63 of a to z, 0 to 9 and "-", with a letter or digit at both ends, and not begin with "sb-" as ids do`,
  );
}

function checkImage(image: string): string {
  if (image === "" || image.length > longestImageName || !imageName.test(image)) {
    throw new BadRequest(
      `image ${JSON.stringify(image.slice(0, 80))} is not an image name such as debian:12`,
    );
  }
  return image;
}

/**
 * Labels are in every list. Both are written into the record of a runtime, which is read whole and handed to a launcher that
 * all owners share.
 */
function checkWeight(env: Record<string, string>, metadata: Record<string, string>): void {
  const labels = Buffer.byteLength(JSON.stringify(metadata));
  if (labels > mostMetadataBytes) {
    throw new BadRequest(`metadata is ${labels} bytes as JSON; at most ${mostMetadataBytes} are taken`);
  }
  const bytes = Buffer.byteLength(JSON.stringify({ env, metadata }));
  if (bytes > mostLabelAndEnvBytes) {
    throw new BadRequest(
      `env and metadata together are ${bytes} bytes as JSON; at most ${mostLabelAndEnvBytes} are taken`,
    );
  }
}
