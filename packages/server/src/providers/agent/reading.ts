import { type ExitReason, execIdPattern, exitReasons, type LimitName, limitNames } from "@alcove/wire";
import { beginningOf, commandBeginning } from "../../ports/command-beginning.ts";
import { ProviderError } from "../../ports/errors.ts";
import type { ExecId } from "../../ports/ids.ts";
import type { ExecExit, ExecInfo, FileChange, FileEntry, FileType } from "../../ports/sandbox-operations.ts";

/**
 * Readers of what an agent says. A sandbox may be hostile, so nothing of it is believed before it was looked at.
 * Unknown fields are ignored: a newer agent may say more.
 */
type Fields = Readonly<Record<string, unknown>>;

export function objectOf(value: unknown, what: string): Fields {
  if (!isFields(value)) throw new ProviderError(`the agent sent no object as ${what}`);
  return value;
}

function isFields(value: unknown): value is Fields {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

/** Numbers of an agent count something: none is below zero, and none is larger than is counted exactly. */
export function numberOf(value: unknown, key: string): number {
  const found = objectOf(value, "payload")[key];
  if (typeof found !== "number" || !(found >= 0 && found <= Number.MAX_SAFE_INTEGER))
    throw new ProviderError(`the agent sent no number as "${key}"`);
  return found;
}

/** Sizes go up to 2^64, those of sparse files above all: one that is not counted exactly becomes the largest that is. */
function sizeOf(fields: Fields, key: string): number {
  const found = fields[key];
  const large = typeof found === "number" && found > Number.MAX_SAFE_INTEGER && found <= 2 ** 64;
  return large ? Number.MAX_SAFE_INTEGER : numberOf(fields, key);
}

export function optionalSizeOf(fields: Fields, key: string): number | undefined {
  const found = fields[key];
  return found === undefined || found === null ? undefined : sizeOf(fields, key);
}

const earliestMs = Date.parse("0001-01-01T00:00:00Z");
const latestMs = Date.parse("9999-12-31T23:59:59.999Z");

/** Programs give files any time; what no timestamp can tell becomes the nearest that one can. */
function dateOf(fields: Fields, key: string): Date {
  const ms = fields[key];
  if (typeof ms !== "number") throw new ProviderError(`the agent sent no time as "${key}"`);
  return new Date(Math.min(Math.max(ms, earliestMs), latestMs));
}

export function optionalNumberOf(fields: Fields, key: string): number | undefined {
  const found = fields[key];
  return found === undefined || found === null ? undefined : numberOf(fields, key);
}

export function textOf(fields: Fields, key: string): string {
  const found = fields[key];
  if (typeof found !== "string") throw new ProviderError(`the agent sent no text as "${key}"`);
  // An agent that was taken over may say half of a surrogate pair, and clients refuse all of what such a text is in.
  return found.toWellFormed();
}

export function optionalTextOf(fields: Fields, key: string): string | undefined {
  const found = fields[key];
  return found === undefined || found === null ? undefined : textOf(fields, key);
}

export function listOf(fields: Fields, key: string): unknown[] {
  const found = fields[key];
  if (!Array.isArray(found)) throw new ProviderError(`the agent sent no list as "${key}"`);
  return found;
}

const fileTypes: ReadonlySet<string> = new Set<FileType>([
  "file",
  "dir",
  "symlink",
  "fifo",
  "socket",
  "char_device",
  "block_device",
  "unknown",
]);
const isFileType = (text: string): text is FileType => fileTypes.has(text);

export function fileEntryOf(value: unknown): FileEntry {
  const fields = objectOf(value, "file");
  const type = textOf(fields, "type");
  const symlinkTarget = optionalTextOf(fields, "symlink_target");
  return {
    name: textOf(fields, "name"),
    path: textOf(fields, "path"),
    type: isFileType(type) ? type : "unknown",
    size: sizeOf(fields, "size"),
    mode: numberOf(fields, "mode"),
    uid: numberOf(fields, "uid"),
    gid: numberOf(fields, "gid"),
    modifiedAt: dateOf(fields, "mtime_ms"),
    ...(symlinkTarget === undefined ? {} : { symlinkTarget }),
  };
}

const changeTypes: ReadonlySet<string> = new Set<FileChange["type"]>([
  "create",
  "write",
  "remove",
  "rename",
  "chmod",
  "overflow",
]);
const isChangeType = (text: string): text is FileChange["type"] => changeTypes.has(text);

/** @returns undefined for a change of a kind this client does not know. */
export function fileChangeOf(value: unknown): FileChange | undefined {
  const fields = objectOf(value, "change");
  const type = textOf(fields, "type");
  return isChangeType(type) ? { type, path: textOf(fields, "path") } : undefined;
}

const reasons: ReadonlySet<string> = new Set(exitReasons);
const isReason = (text: string): text is ExitReason => reasons.has(text);

/** Reads an exit event, or the end of a record. */
export function execExitOf(value: unknown): ExecExit {
  const fields = objectOf(value, "exit");
  const reason = textOf(fields, "reason");
  if (!isReason(reason))
    throw new ProviderError(`the agent named an unknown reason "${reason.slice(0, 64)}"`);
  const startedAt = dateOf(fields, "started_at");
  const endedAt = dateOf(fields, "ended_at");
  const signal = optionalTextOf(fields, "signal");
  const startError = optionalTextOf(fields, "start_error");
  return {
    exitCode: numberOf(fields, "exit_code"),
    reason,
    startedAt,
    endedAt,
    durationMs:
      optionalNumberOf(fields, "duration_ms") ?? Math.max(0, endedAt.getTime() - startedAt.getTime()),
    outputBytes: numberOf(fields, "output_bytes"),
    ...(signal === undefined ? {} : { signal: beginningOf(signal, maxTextLength) }),
    ...(startError === undefined ? {} : { startError: beginningOf(startError, maxTextLength) }),
    ...useOf(fields),
  };
}

const limits: ReadonlySet<string> = new Set(limitNames);
const isLimit = (text: string): text is LimitName => limits.has(text);

/** What the end of a command tells of its use; older agents tell nothing. */
function useOf(fields: Fields): Pick<ExecExit, "limit" | "usage" | "oomKills" | "inputLostBytes"> {
  const limit = optionalTextOf(fields, "limit");
  const oomKills = optionalNumberOf(fields, "oom_kills");
  const inputLostBytes = optionalNumberOf(fields, "input_lost");
  const usage = fields.usage;
  return {
    ...(limit === undefined || !isLimit(limit) ? {} : { limit }),
    ...(oomKills === undefined || oomKills === 0 ? {} : { oomKills }),
    ...(inputLostBytes === undefined ? {} : { inputLostBytes }),
    ...(usage === undefined || usage === null
      ? {}
      : { usage: { cpuMs: numberOf(usage, "cpu_ms"), maxMemoryBytes: numberOf(usage, "max_memory_bytes") } }),
  };
}

const execIdForm = new RegExp(execIdPattern);
const isExecId = (text: string): text is ExecId => execIdForm.test(text);

export function execIdOf(fields: Fields): ExecId {
  const id = textOf(fields, "exec_id");
  if (!isExecId(id)) throw new ProviderError("the agent named an exec by something that is no exec id");
  return id;
}

/** How much of a named input the answer to an attach tells to have been taken. */
export function inputTakenOf(value: unknown): number | undefined {
  return optionalNumberOf(objectOf(value, "exec"), "input_taken");
}

/** A little more than an agent keeps of a command line; one of the first releases tells all of it. */
const maxCommandLength = 33 * 1024;
/** Of tags and of what tells why a command did not start. */
const maxTextLength = 8 * 1024;

/** @param options.commandLength how much of the command line is kept. */
export function execInfoOf(value: unknown, options: { commandLength?: number } = {}): ExecInfo {
  const fields = objectOf(value, "exec");
  const tag = optionalTextOf(fields, "tag");
  const inputBytes = optionalNumberOf(fields, "input_bytes");
  const line = { command: textOf(fields, "command"), args: listOf(fields, "args") };
  return {
    execId: execIdOf(fields),
    pid: numberOf(fields, "pid"),
    ...commandBeginning(line, options.commandLength ?? maxCommandLength),
    tty: fields.tty === true,
    detached: fields.detached === true,
    startedAt: dateOf(fields, "started_at"),
    outputBytes: numberOf(fields, "output_bytes"),
    firstOffset: numberOf(fields, "first_offset"),
    ...(tag === undefined ? {} : { tag: beginningOf(tag, maxTextLength) }),
    ...(inputBytes === undefined ? {} : { inputBytes }),
    ...(fields.state === "exited" ? { exit: execExitOf(fields) } : {}),
  };
}
