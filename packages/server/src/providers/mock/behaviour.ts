import { type ErrorCode, errorCodes, parseDuration } from "@alcove/wire";
import { BadRequest, DomainError } from "../../ports/errors.ts";

/** What a sandbox's metadata asks the simulation to do. `docs/mock-provider.md` lists the keys. */
export interface MockBehaviour {
  spawnDelayMs: number;
  spawnError?: DomainError;
  execDelayMs: number;
  execError?: DomainError;
  destroyDelayMs: number;
  destroyError?: DomainError;
  /** How many times destroy fails before it works; without a number it fails always. */
  destroyFailures: number;
  /** Every command writes this many bytes instead of running. */
  outputBytes?: number;
  /** Bytes per second of `outputBytes`; absent: as fast as they are read. */
  outputRate?: number;
}

const prefix = "mock.";
const plain: MockBehaviour = Object.freeze({
  spawnDelayMs: 0,
  execDelayMs: 0,
  destroyDelayMs: 0,
  destroyFailures: 0,
});

/** @throws BadRequest for an unknown `mock.*` key or a value that cannot be read. */
export function readBehaviour(metadata: Readonly<Record<string, string>>): MockBehaviour {
  let behaviour: MockBehaviour | undefined;
  for (const key of Object.keys(metadata)) {
    if (!key.startsWith(prefix)) continue;
    behaviour ??= { ...plain };
    apply(behaviour, key, metadata[key] ?? "");
  }
  if (behaviour?.destroyFailures && behaviour.destroyError === undefined)
    behaviour.destroyError = new DomainError("provider_error", "the mock was told to fail to destroy");
  else if (behaviour?.destroyError !== undefined && behaviour.destroyFailures === 0)
    behaviour.destroyFailures = Number.POSITIVE_INFINITY;
  return behaviour ?? plain;
}

function apply(behaviour: MockBehaviour, key: string, value: string): void {
  switch (key.slice(prefix.length)) {
    case "spawn_delay":
      behaviour.spawnDelayMs = delay(key, value);
      return;
    case "exec_delay":
      behaviour.execDelayMs = delay(key, value);
      return;
    case "destroy_delay":
      behaviour.destroyDelayMs = delay(key, value);
      return;
    case "spawn_error":
      behaviour.spawnError = failure(key, value);
      return;
    case "exec_error":
      behaviour.execError = failure(key, value);
      return;
    case "destroy_error":
      behaviour.destroyError = failure(key, value);
      return;
    case "destroy_failures":
      behaviour.destroyFailures = wholeNumber(key, value);
      return;
    case "output_bytes":
      behaviour.outputBytes = wholeNumber(key, value);
      return;
    case "output_rate":
      behaviour.outputRate = Math.max(1, wholeNumber(key, value));
      return;
    default:
      throw new BadRequest(
        `metadata ${key} is not something the mock provider can do; see docs/mock-provider.md`,
      );
  }
}

function delay(key: string, value: string): number {
  const ms = parseDuration(value);
  if (ms === undefined)
    throw new BadRequest(`metadata ${key}: ${JSON.stringify(value)} is not a duration such as 200ms`);
  return ms;
}

function wholeNumber(key: string, value: string): number {
  const number = Number(value);
  if (!/^\d{1,15}$/.test(value) || !Number.isSafeInteger(number))
    throw new BadRequest(
      `metadata ${key}: ${JSON.stringify(value)} is not a whole number of at most 15 digits`,
    );
  return number;
}

function failure(key: string, value: string): DomainError {
  const [code = "", ...rest] = value.split(":");
  const known = errorCodes.find((each) => each === code.trim()) satisfies ErrorCode | undefined;
  if (known === undefined)
    throw new BadRequest(
      `metadata ${key}: ${JSON.stringify(value)} must be "<code>: <message>" with a code such as provider_error`,
    );
  return new DomainError(known, rest.join(":").trim() || `the mock was told to fail with ${known}`);
}
