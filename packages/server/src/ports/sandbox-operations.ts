import type { Duplex, Readable } from "node:stream";
import type { ExitReason, LimitName } from "@alcove/wire";
import type { ExecId } from "./ids.ts";

/** What can be done in one running sandbox. Methods throw DomainErrors; RuntimeGone when the sandbox has ended. */
export interface SandboxOperations {
  readonly execs: ExecOperations;
  readonly files: FileOperations;
  /** Tells the sandbox when to end itself if nobody extends it; null: never. The caller adds its dead-man's grace. */
  setExpiry(expiresInMs: number | null, options: CallOptions): Promise<void>;
  stats(options: CallOptions): Promise<RuntimeStats>;
  /** Connects to a TCP port inside. @throws NotFound when nothing listens there. */
  dialPort(port: number, options: CallOptions): Promise<PortConnection>;
}

/** A TCP connection to a port inside a sandbox. */
export interface PortConnection extends Duplex {
  /** Set by who reads it where nothing of a piece is kept once it was given: its memory may be given back then. */
  readerCopies?: boolean;
  /** Set by who reads it where pieces that were given may wait elsewhere: whether some do. It is not closed before. */
  holds?: () => boolean;
  /** Set by who writes it where nobody else has a piece of 1 KiB or more: its memory may be given back once it was sent. */
  writerGives?: boolean;
}

export interface CallOptions {
  signal: AbortSignal;
}

export interface RuntimeStats {
  cpuUsageMs?: number;
  memoryBytes?: number;
  memoryLimitBytes?: number;
  pids?: number;
  pidsLimit?: number;
  diskBytes?: number;
  diskLimitBytes?: number;
}

export interface ExecSpec {
  execId: ExecId;
  /** What the client asked for, kept for the record. */
  command: string;
  args: readonly string[];
  /** What runs: program and arguments. */
  argv: readonly string[];
  env: Readonly<Record<string, string>>;
  workdir?: string;
  user?: string;
  tty?: WindowSize;
  /** true: standard input stays open until it is closed; false: empty. */
  stdin: boolean;
  /** Names the input of the view that the start returns, so that an attach can go on with it. */
  input?: string;
  /** All of standard input that will come, under the command's own id as its name; what is missing of it is found out by this. */
  inputBytes?: number;
  /** Kept by the sandbox itself: a dead service does not prolong it. */
  timeoutMs: number;
  detached: boolean;
  tag?: string;
  /** A provider that cannot hold a command to one refuses it by name. */
  limits?: ExecUseLimits;
}

/** What a command may use; one that uses more ends with reason `limit`. */
export interface ExecUseLimits {
  cpuTimeMs?: number;
  outputBytes?: number;
  /** Capability `exec_limits`, as is `pids`. */
  memoryMb?: number;
  /** Starting one more fails inside and ends nothing. */
  pids?: number;
}

export interface WindowSize {
  cols: number;
  rows: number;
}

export interface ExecExit {
  exitCode: number;
  /** `SIGTERM` and so on, when a signal ended it. */
  signal?: string;
  reason: ExitReason;
  startedAt: Date;
  endedAt: Date;
  durationMs: number;
  outputBytes: number;
  /** Why the program could not be started; the exit code is then 127 or 126. */
  startError?: string;
  /** With reason `limit`. */
  limit?: LimitName;
  /** Of its first process and all that had ended before it. */
  usage?: { cpuMs: number; maxMemoryBytes: number };
  /** Memory kills in the sandbox while it ran, when there were any. */
  oomKills?: number;
  /** It was killed because so many bytes of the input that was given whole with it were lost. */
  inputLostBytes?: number;
}

export interface ExecInfo {
  execId: ExecId;
  pid: number;
  command: string;
  args: readonly string[];
  tty: boolean;
  tag?: string;
  detached: boolean;
  startedAt: Date;
  outputBytes: number;
  firstOffset: number;
  /** What was said at its start to come as input, while the end of that has not come; absent where nobody knows. */
  inputBytes?: number;
  /** Present once it has ended. */
  exit?: ExecExit;
}

export type ExecEvent =
  | { type: "output"; stream: "stdout" | "stderr"; data: Buffer; offset: number }
  | { type: "exit"; exit: ExecExit };

/**
 * A view of one command's output. Iterate `events` once: output in order, then one exit event. Events that end without
 * an exit were cut: the sandbox is gone. Reading slowly slows a lossless view's command down. Disposing ends the view,
 * never the command.
 */
export interface ExecView extends AsyncDisposable {
  readonly execId: ExecId;
  readonly pid: number;
  readonly events: AsyncIterable<ExecEvent>;
  /**
   * Of a short command: all events, when the last of them has come already and none was taken. They are taken then, and the view is
   * over; undefined leaves it as it is. Absent: such a view is read as any other.
   */
  whole?: () => readonly ExecEvent[] | undefined;
  /** Waits while the command does not read. Data for a closed stdin is dropped. */
  writeStdin(data: Uint8Array): Promise<void>;
  closeStdin(): Promise<void>;
  /**
   * Of an input with a name: calls back at once, and whenever more has arrived, with how many bytes have, over all views
   * that were given the name. What was sent beyond that when a view broke is sent again on the next, and only that.
   * Absent: nobody knows, because the input has no name, the sandbox does not count it or has forgotten it.
   */
  watchInput?: (listener: (taken: number) => void) => void;
}

export interface KillOptions {
  reason: "cancelled" | "timeout";
  /** It is killed because so many bytes of its input were lost: with reason `cancelled`, the exit tells that. */
  inputLostBytes?: number;
}

export interface ExecOperations {
  /** Starts a command and follows it, lossless. @throws BadRequest for a missing workdir or unknown user, Conflict for a known id. */
  start(spec: ExecSpec, options: CallOptions): Promise<ExecView>;
  /** Starts a command without following it. */
  startDetached(spec: ExecSpec, options: CallOptions): Promise<{ pid: number }>;
  /**
   * @param from offset of the first byte wanted; before what is kept: the oldest byte kept.
   * @param input name of the view's input; views that had the same name before have no input from now on.
   * @param again it goes on with a view that broke, or with a start whose answer is missing: the bound on those who follow
   * commands at one sandbox does not count it, nor do the shares of owners keep it out. @throws NotFound; Unavailable when too many follow commands there.
   */
  attach(
    execId: ExecId,
    options: CallOptions & {
      from: number;
      follow: boolean;
      lossless: boolean;
      input?: string;
      again?: boolean;
    },
  ): Promise<ExecView & { info: ExecInfo }>;
  get(execId: ExecId, options: CallOptions): Promise<ExecInfo>;
  list(options: CallOptions): Promise<ExecInfo[]>;
  /**
   * @param options.input names this data: what of it was taken under that name before is not taken again.
   * @param options.offset of the first byte of this data in the input of that name; where that is not 0 `inputTaken` has told it.
   * @param options.again it may have been sent before. @throws Unavailable when nobody knows how much of it was taken then;
   * Conflict when the command has ended or its stdin is closed.
   */
  writeStdin(
    execId: ExecId,
    data: Uint8Array,
    options: CallOptions & { close: boolean; input?: string; offset?: number; again?: boolean },
  ): Promise<void>;
  /** How much of the input of that name was taken; undefined: nobody knows, or it cannot be gone on with at an offset. */
  inputTaken(execId: ExecId, input: string, options: CallOptions): Promise<number | undefined>;
  resize(execId: ExecId, size: WindowSize, options: CallOptions): Promise<void>;
  /** To the command's process group. @throws Conflict when it has ended. */
  signal(execId: ExecId, signal: number, options: CallOptions): Promise<void>;
  /** Kills the whole tree and resolves when nothing of it is left. */
  kill(execId: ExecId, options: CallOptions & KillOptions): Promise<ExecInfo>;
  /**
   * Every exec that ends, whoever started it, from the moment `onListening` is called: a list that is read after it misses
   * no end. Ends when `signal` aborts or the sandbox goes.
   */
  exits(
    options: CallOptions & { onListening?: () => void },
  ): AsyncIterable<{ execId: ExecId; exit: ExecExit }>;
  /**
   * Kills the tree with reason `cancelled` after `graceMs` unless somebody attaches; null calls it off. While a command is
   * followed it is not ended so: the grace begins anew.
   */
  setGrace(execId: ExecId, graceMs: number | null, options: CallOptions): Promise<void>;
}

export type FileType =
  | "file"
  | "dir"
  | "symlink"
  | "fifo"
  | "socket"
  | "char_device"
  | "block_device"
  | "unknown";

export interface FileEntry {
  name: string;
  path: string;
  type: FileType;
  size: number;
  /** Permission bits. */
  mode: number;
  uid: number;
  gid: number;
  modifiedAt: Date;
  symlinkTarget?: string;
}

/** Told before an answer takes so many bytes; what it returns is awaited, and what it throws ends the answer. */
export type AnswerRoom = (bytes: number) => Promise<void> | undefined;

/** Paths are absolute and free of NUL. Missing paths throw NotFound, wrong kinds BadRequest, full directories Conflict. */
export interface FileOperations {
  /** A last symlink is described, not followed, unless `follow`. */
  stat(path: string, options: CallOptions & { follow?: boolean }): Promise<FileEntry>;
  /** @throws TooLarge above 100,000 entries or 32 MiB of names. */
  list(path: string, options: CallOptions & { depth: number; room?: AnswerRoom }): Promise<FileEntry[]>;
  /** The body must be read to its end or destroyed. `length` is null when unknown in advance. */
  read(
    path: string,
    options: CallOptions & { offset?: number; length?: number },
  ): Promise<{ info: FileEntry; length: number | null; body: Readable }>;
  /**
   * Atomic: readers see the old file or the new one; an aborted write leaves nothing behind.
   * @param options.spends nobody else has the pieces of `body`: the memory of each may be given back once it was sent.
   */
  write(
    path: string,
    body: AsyncIterable<Uint8Array>,
    options: CallOptions & { mode?: number; user?: string; maxBytes?: number; spends?: boolean },
  ): Promise<FileEntry>;
  mkdir(
    path: string,
    options: CallOptions & { mode?: number; user?: string; parents: boolean },
  ): Promise<FileEntry>;
  move(from: string, to: string, options: CallOptions): Promise<void>;
  remove(path: string, options: CallOptions & { recursive: boolean }): Promise<void>;
  chmod(path: string, mode: number, options: CallOptions): Promise<void>;
  /** Bounded as `list` is. */
  glob(pattern: string, options: CallOptions & { room?: AnswerRoom }): Promise<string[]>;
  /** A tar of what is below `path`. */
  archive(path: string, options: CallOptions): Promise<Readable>;
  /** Unpacks a tar below `path`, confined to it. @param options.spends as for `write`. */
  unpack(
    path: string,
    body: AsyncIterable<Uint8Array>,
    options: CallOptions & { user?: string; spends?: boolean },
  ): Promise<{ entries: number }>;
  /** Ends when `signal` aborts or the sandbox goes. */
  watch(path: string, options: CallOptions & { recursive: boolean }): Promise<AsyncIterable<FileChange>>;
}

export interface FileChange {
  type: "create" | "write" | "remove" | "rename" | "chmod" | "overflow";
  path: string;
}
