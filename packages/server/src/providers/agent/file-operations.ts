import type { Readable } from "node:stream";
import { deadlineAfter } from "../../platform/deadline.ts";
import { TooLarge } from "../../ports/errors.ts";
import type { AnswerRoom, CallOptions, FileChange, FileEntry, FileOperations } from "../../ports/index.ts";
import type { AgentChannel, AgentRequest } from "./channel.ts";
import { Download, Upload, Watch } from "./file-streams.ts";
import type { SharedTable } from "./places.ts";
import { fileEntryOf, listOf, numberOf, objectOf, optionalSizeOf, textOf } from "./reading.ts";

/** The agent's own bounds, held here too because a sandbox may be hostile. */
const maxEntries = 100_000;
const maxNameBytes = 32 * 1024 * 1024;
/** What an entry takes beside its names, as text and as an object; and how often its text is there at once. */
const fieldsBytes = 150;
const objectBytes = 200;
const copies = 3;
/** How long one step in a file system may take; it hangs where the file system does, and then the caller is told. */
const stepMs = 60_000;

/** Files of one sandbox, through its agent. docs/agent-protocol.md, File operations. */
export class AgentFiles implements FileOperations {
  readonly #channel: AgentChannel;

  readonly #stepMs: number;
  readonly #watches: { table: SharedTable; owner: string } | undefined;

  /** @param options.watches counts watches where sandboxes share the kernel's table of them. */
  constructor(options: {
    channel: AgentChannel;
    stepMs?: number;
    watches?: { table: SharedTable; owner: string };
  }) {
    this.#channel = options.channel;
    this.#watches = options.watches;
    this.#stepMs = options.stepMs ?? stepMs;
  }

  async stat(path: string, options: CallOptions & { follow?: boolean }): Promise<FileEntry> {
    return fileEntryOf(await this.#step({ op: "file.stat", path, follow: options.follow }, options));
  }

  async list(
    path: string,
    options: CallOptions & { depth: number; room?: AnswerRoom },
  ): Promise<FileEntry[]> {
    const entries: FileEntry[] = [];
    const size = new AnswerSize(path, options.room);
    await this.#channel.collect(
      { op: "file.list", path, depth: options.depth },
      (event) => {
        for (const item of batch(event, "entries")) {
          const entry = fileEntryOf(item);
          entries.push(entry);
          size.add(fieldsBytes + entry.name.length + entry.path.length + (entry.symlinkTarget?.length ?? 0));
        }
        return size.reserve();
      },
      options,
    );
    return entries;
  }

  async read(
    path: string,
    options: CallOptions & { offset?: number; length?: number },
  ): Promise<{ info: FileEntry; length: number | null; body: Readable }> {
    const download = new Download({ lengthOf: promisedLength });
    const { offset, length } = options;
    this.#channel.begin({ op: "file.read", path, offset, length }, download, options.signal);
    try {
      const reply = objectOf(await download.reply, "reply");
      return {
        info: fileEntryOf(reply.info),
        length: promisedLength(reply) ?? null,
        body: download.body,
      };
    } catch (error) {
      download.body.destroy();
      throw error;
    }
  }

  async write(
    path: string,
    body: AsyncIterable<Uint8Array>,
    options: CallOptions & { mode?: number; user?: string; maxBytes?: number; spends?: boolean },
  ): Promise<FileEntry> {
    const { mode, user, spends, maxBytes = Number.POSITIVE_INFINITY } = options;
    const upload = new Upload(body, { path, maxBytes, spends });
    this.#channel.begin({ op: "file.write", path, mode, user }, upload, options.signal);
    return fileEntryOf(await upload.finished());
  }

  async mkdir(
    path: string,
    options: CallOptions & { mode?: number; user?: string; parents: boolean },
  ): Promise<FileEntry> {
    const { mode, user, parents } = options;
    return fileEntryOf(await this.#step({ op: "file.mkdir", path, mode, user, parents }, options));
  }

  async move(from: string, to: string, options: CallOptions): Promise<void> {
    await this.#channel.call({ op: "file.move", from, to }, options);
  }

  async remove(path: string, options: CallOptions & { recursive: boolean }): Promise<void> {
    await this.#channel.call({ op: "file.remove", path, recursive: options.recursive }, options);
  }

  async chmod(path: string, mode: number, options: CallOptions): Promise<void> {
    await this.#step({ op: "file.chmod", path, mode }, options);
  }

  /** @throws DeadlineExceeded when it hangs. */
  async #step(request: AgentRequest, { signal }: CallOptions): Promise<unknown> {
    using deadline = deadlineAfter(this.#stepMs, signal);
    return await this.#channel.call(request, { signal: deadline.signal });
  }

  async glob(pattern: string, options: CallOptions & { room?: AnswerRoom }): Promise<string[]> {
    const paths: string[] = [];
    const size = new AnswerSize(pattern, options.room);
    await this.#channel.collect(
      { op: "file.glob", pattern },
      (event) => {
        for (const item of batch(event, "paths")) {
          const path = String(item);
          paths.push(path);
          size.add(path.length);
        }
        return size.reserve();
      },
      options,
    );
    return paths;
  }

  async archive(path: string, options: CallOptions): Promise<Readable> {
    const download = new Download();
    this.#channel.begin({ op: "file.archive", path }, download, options.signal);
    try {
      await download.reply;
      return download.body;
    } catch (error) {
      download.body.destroy();
      throw error;
    }
  }

  async unpack(
    path: string,
    body: AsyncIterable<Uint8Array>,
    options: CallOptions & { user?: string; spends?: boolean },
  ): Promise<{ entries: number }> {
    const { user, spends } = options;
    const upload = new Upload(body, { path, maxBytes: Number.POSITIVE_INFINITY, spends });
    this.#channel.begin({ op: "file.unpack", path, user }, upload, options.signal);
    return { entries: numberOf(await upload.finished(), "entries") };
  }

  async watch(
    path: string,
    options: CallOptions & { recursive: boolean },
  ): Promise<AsyncIterable<FileChange>> {
    options.signal.throwIfAborted();
    const giveBack = this.#watches?.table.take(this.#watches.owner);
    const watch = new Watch(giveBack === undefined ? {} : { onOver: giveBack });
    this.#channel.begin({ op: "file.watch", path, recursive: options.recursive }, watch, options.signal);
    await watch.started;
    return watch.changes;
  }
}

function batch(event: unknown, kind: "entries" | "paths"): unknown[] {
  const fields = objectOf(event, "event");
  return textOf(fields, "event") === kind ? listOf(fields, kind) : [];
}

/** Holds an answer to its bounds and asks for the memory it takes: as objects, and again as the text that is sent. */
class AnswerSize {
  readonly #what: string;
  readonly #room: AnswerRoom | undefined;
  #count = 0;
  #bytes = 0;

  constructor(what: string, room: AnswerRoom | undefined) {
    this.#what = what;
    this.#room = room;
  }

  add(bytes: number): void {
    this.#count += 1;
    this.#bytes += bytes;
    if (this.#count > maxEntries)
      throw new TooLarge(`${this.#what} has more than ${maxEntries} entries; ask for a part of it`);
    if (this.#bytes > maxNameBytes)
      throw new TooLarge(
        `the names in ${this.#what} have more than ${maxNameBytes} bytes; ask for a part of it`,
      );
  }

  reserve(): Promise<void> | undefined {
    return this.#room?.(this.#bytes * copies + this.#count * objectBytes);
  }
}

/** Absent for files whose size says nothing, as in procfs. */
function promisedLength(reply: unknown): number | undefined {
  return optionalSizeOf(objectOf(reply, "reply"), "length");
}
