import type { Readable } from "node:stream";
import type { Logger } from "../../platform/logger.ts";
import { rememberRequest } from "../../platform/request-scope.ts";
import { BadRequest, DomainError, RuntimeGone, TooLarge } from "../../ports/errors.ts";
import type { EventSink } from "../../ports/event-sink.ts";
import type {
  AnswerRoom,
  CallOptions,
  FileChange,
  FileEntry,
  FileOperations,
} from "../../ports/sandbox-operations.ts";
import type { SandboxRow } from "../../ports/store.ts";
import type { Answer } from "../answers/answer-budget.ts";
import type { Operation, OperationMetrics } from "../diagnostics/operation-metrics.ts";
import { checkUser } from "../exec/command-rules.ts";
import type { RunningSandboxes } from "../exec/running-sandboxes.ts";
import { workspaceFiles } from "../pool/workspace.ts";
import { inSandbox } from "../sandboxes/in-sandbox.ts";
import type { RunningSandbox } from "../sandboxes/live-sandboxes.ts";
import { logSandbox } from "../sandboxes/sandbox-log.ts";
import { checkPath, keepWorkspace } from "./paths.ts";

export type FileBody = AsyncIterable<Uint8Array>;

/** What is done with the files of a sandbox. */
type Act<T> = (
  files: FileOperations,
  tell: (type: "file.written" | "file.read", data: Record<string, unknown>) => void,
  row: SandboxRow,
) => Promise<T>;

/** Files of sandboxes. What a path leads to is decided inside the sandbox; this checks its shape and tells events. */
export class FileService {
  readonly #sandboxes: Pick<RunningSandboxes, "locate">;
  readonly #events: EventSink;
  readonly #operations: OperationMetrics;
  readonly #maxUploadBytes: number;
  readonly #logger: Logger;

  /** @param options.maxUploadBytes largest raw upload; 0: no limit. */
  constructor(options: {
    sandboxes: Pick<RunningSandboxes, "locate">;
    events: EventSink;
    operations: OperationMetrics;
    maxUploadBytes: number;
    logger: Logger;
  }) {
    this.#sandboxes = options.sandboxes;
    this.#events = options.events;
    this.#operations = options.operations;
    this.#maxUploadBytes = options.maxUploadBytes;
    this.#logger = options.logger;
  }

  write(
    sandboxId: string,
    path: string,
    body: FileBody,
    options: CallOptions & { mode?: number; user?: string; spends?: boolean },
  ): Promise<FileEntry> {
    checkPath("path", path);
    if (/\/\.?$/.test(path))
      throw new BadRequest(
        `path ${JSON.stringify(path.slice(0, 200))} names a directory, and what is written is a file: give its name; the directories it needs are made`,
      );
    if (options.user !== undefined) checkUser(options.user);
    const limit = this.#maxUploadBytes > 0 ? { maxBytes: this.#maxUploadBytes } : {};
    return this.#operate(sandboxId, "file_write", options, async (files, tell) => {
      const entry = await files.write(path, body, { ...options, ...limit });
      tell("file.written", { path, size: entry.size });
      return entry;
    });
  }

  /** The body must be read to its end or destroyed. */
  read(
    sandboxId: string,
    path: string,
    options: CallOptions & { offset?: number; length?: number },
  ): Promise<{ info: FileEntry; length: number | null; body: Readable }> {
    checkPath("path", path);
    return this.#operate(sandboxId, "file_read", options, async (files, tell, row) => {
      const read = await files.read(path, options);
      this.#tellCut(read.body, row, path);
      tell("file.read", { path, size: read.info.size });
      return read;
    });
  }

  /** What a read of `path` would meet: a last symlink is followed. */
  target(sandboxId: string, path: string, options: CallOptions): Promise<FileEntry> {
    checkPath("path", path);
    return this.#operate(sandboxId, "file_stat", options, (files) =>
      files.stat(path, { ...options, follow: true }),
    );
  }

  stat(sandboxId: string, path: string, options: CallOptions): Promise<FileEntry> {
    checkPath("path", path);
    return this.#operate(sandboxId, "file_stat", options, (files) => files.stat(path, options));
  }

  list(sandboxId: string, path: string, options: CallOptions & { answer?: Answer }): Promise<FileEntry[]> {
    checkPath("path", path);
    return this.#operate(sandboxId, "file_list", options, (files, _tell, row) =>
      files.list(path, { signal: options.signal, depth: 1, ...roomIn(options, row) }),
    );
  }

  move(sandboxId: string, from: string, to: string, options: CallOptions): Promise<void> {
    checkPath("old_path", from);
    checkPath("new_path", to);
    keepWorkspace("old_path", from);
    keepWorkspace("new_path", to);
    return this.#operate(sandboxId, "file_move", options, (files) => files.move(from, to, options));
  }

  remove(sandboxId: string, path: string, options: CallOptions & { recursive: boolean }): Promise<void> {
    checkPath("path", path);
    keepWorkspace("path", path);
    return this.#operate(sandboxId, "file_delete", options, (files) => files.remove(path, options));
  }

  chmod(sandboxId: string, path: string, mode: number, options: CallOptions): Promise<void> {
    checkPath("path", path);
    return this.#operate(sandboxId, "file_chmod", options, (files) => files.chmod(path, mode, options));
  }

  /** @throws BadRequest for a pattern that is not absolute. */
  glob(sandboxId: string, pattern: string, options: CallOptions & { answer?: Answer }): Promise<string[]> {
    checkPath("pattern", pattern);
    return this.#operate(sandboxId, "file_glob", options, (files, _tell, row) =>
      files.glob(pattern, { signal: options.signal, ...roomIn(options, row) }),
    );
  }

  /** A tar of what is below `path`. The body must be read to its end or destroyed. */
  archive(sandboxId: string, path: string, options: CallOptions): Promise<Readable> {
    checkPath("path", path);
    return this.#operate(sandboxId, "file_read", options, async (files, tell, row) => {
      const body = await files.archive(path, options);
      this.#tellCut(body, row, path);
      tell("file.read", { path, archive: true });
      return body;
    });
  }

  /** Makes the directory `path` where it is missing. */
  unpack(
    sandboxId: string,
    path: string,
    body: FileBody,
    options: CallOptions & { user?: string; spends?: boolean },
  ): Promise<{ entries: number }> {
    checkPath("path", path);
    if (options.user !== undefined) checkUser(options.user);
    const limited = this.#maxUploadBytes > 0 ? limitBody(body, this.#maxUploadBytes) : body;
    return this.#operate(sandboxId, "file_write", options, async (files, tell) => {
      await files.mkdir(path, { ...options, parents: true });
      const unpacked = await files.unpack(path, limited, options);
      tell("file.written", { path, archive: true, entries: unpacked.entries });
      return unpacked;
    });
  }

  watch(
    sandboxId: string,
    path: string,
    options: CallOptions & { recursive: boolean },
  ): Promise<AsyncIterable<FileChange>> {
    checkPath("path", path);
    return this.#operate(sandboxId, "file_watch", options, (files) => files.watch(path, options));
  }

  /** Whoever reads a body that breaks off sees only that it did: why stands in the log. */
  #tellCut(body: Readable, row: SandboxRow, filePath: string): void {
    const within = rememberRequest();
    body.once("error", (err: Error) => {
      const happening = { event: "file.cut", outcome: "failed", filePath, err } as const;
      within(() => logSandbox(this.#logger, row, happening, "a file broke off while it was read"));
    });
  }

  #operate<T>(
    sandboxId: string,
    operation: Operation | "file_watch",
    options: CallOptions,
    act: Act<T>,
  ): Promise<T> {
    return inSandbox(this.#sandboxes, sandboxId, options, (sandbox) =>
      this.#operateIn(sandbox, operation, options, act),
    );
  }

  /** Runs one operation; a failure that is not the caller's own is told as `operation.failed`. */
  async #operateIn<T>(
    { row, operations }: RunningSandbox,
    operation: Operation | "file_watch",
    options: CallOptions,
    act: Act<T>,
  ): Promise<T> {
    try {
      const tell = (type: "file.written" | "file.read", data: Record<string, unknown>) =>
        this.#events.emit({
          type,
          sandboxId: row.id,
          ownerId: row.ownerId,
          data: { operation, provider: row.provider, ...data },
        });
      const files = row.slot === undefined ? operations.files : workspaceFiles(operations.files, row.slot);
      // Endless by nature: a watch has no latency and does not fail by ending.
      if (operation === "file_watch") return await act(files, tell, row);
      const done = () => act(files, tell, row);
      return await this.#operations.measure(operation, row.provider, done, options.signal);
    } catch (error) {
      if (error instanceof RuntimeGone || (error instanceof DomainError && error.code === "provider_error"))
        this.#events.emit({
          type: "operation.failed",
          sandboxId: row.id,
          ownerId: row.ownerId,
          data: { operation, provider: row.provider, error: error.message },
        });
      throw error;
    }
  }
}

/** Where memory for an answer comes from: who owns the sandbox pays, else who asks. */
function roomIn(
  options: CallOptions & { answer?: Answer },
  row: SandboxRow,
): { room: AnswerRoom } | Record<string, never> {
  const { answer, signal } = options;
  return answer === undefined ? {} : { room: (bytes) => answer.grow(row.ownerId, bytes, signal) };
}

async function* limitBody(body: FileBody, maxBytes: number): AsyncGenerator<Uint8Array> {
  let total = 0;
  for await (const chunk of body) {
    total += chunk.byteLength;
    if (total > maxBytes)
      throw new TooLarge(`the upload is larger than ${maxBytes} bytes (files.max_upload)`);
    yield chunk;
  }
}
