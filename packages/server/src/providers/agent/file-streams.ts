import type { Readable } from "node:stream";
import { JoinedReadable } from "../../platform/joined-readable.ts";
import { ProviderError, TooLarge, Unavailable } from "../../ports/errors.ts";
import type { FileChange } from "../../ports/index.ts";
import { runtimeGone } from "./failures.ts";
import { frameKinds } from "./frames.ts";
import { Operation, unexpectedRaw } from "./operation.ts";
import { PushIterator } from "./push-iterator.ts";
import { fileChangeOf, objectOf, textOf } from "./reading.ts";

const bodyHighWaterBytes = 512 * 1024;

/**
 * A body the agent sends. The signal counts until the reply; then the body's holder reads it to its end or destroys it.
 * A body the agent breaks off is destroyed with the failure, so that a short read is never taken for a whole file; so is
 * one that has fewer bytes than its reply promised, because whoever reads it was told that many. With the last of those it is
 * whole, whatever becomes of the sandbox then: who has them all may have gone on to destroy it.
 */
export class Download extends Operation {
  override readonly lasting = true;
  readonly #reply = Promise.withResolvers<unknown>();
  readonly #lengthOf: (reply: unknown) => number | undefined;
  /** Bytes still to come; undefined while nothing is promised. */
  #owed: number | undefined;
  #whole = false;
  readonly #body: JoinedReadable;

  /** @param options.lengthOf what a reply promises; nothing unless given. */
  constructor(options: { lengthOf?: (reply: unknown) => number | undefined } = {}) {
    super();
    this.#lengthOf = options.lengthOf ?? (() => undefined);
    this.#body = new JoinedReadable({
      highWaterMark: bodyHighWaterBytes,
      goOn: () => this.connection?.resume(),
      destroy: (error, done) => {
        if (!this.#whole) this.cancel(error ?? undefined);
        done(error);
      },
    });
  }

  get body(): Readable {
    return this.#body;
  }
  get reply(): Promise<unknown> {
    return this.#reply.promise;
  }

  override onReply(value: unknown): void {
    this.unguard();
    this.#owed = this.#lengthOf(value);
    this.#reply.resolve(value);
    if (this.#owed === 0) this.#finish();
  }
  override onRaw(kind: number, bytes: Buffer): void {
    if (kind !== frameKinds.data) throw unexpectedRaw(kind);
    if (this.#owed !== undefined) {
      this.#owed -= bytes.length;
      if (this.#owed < 0) {
        this.cancel(new ProviderError("the agent sent more than it promised"));
        return;
      }
    }
    const takesMore = this.#body.give(bytes);
    // The end that follows is read however full the body is: a body that has ended asks for nothing more.
    if (this.#owed === 0) this.#finish();
    else if (!takesMore) this.connection?.pause();
  }
  #finish(): void {
    this.#whole = true;
    this.#body.finish();
    // One that has ended asks for nothing more, and an earlier part may have filled it.
    this.connection?.resume();
    this.expectEnd();
  }
  protected override onEnd(): void {
    if (this.#whole) return;
    if (this.#owed !== undefined && this.#owed > 0) {
      this.onFailure(new Unavailable("the file became shorter while it was read"));
      return;
    }
    this.#reply.reject(new ProviderError("the agent ended a download without a reply"));
    this.#body.finish();
  }
  protected override onFailure(error: unknown): void {
    this.#reply.reject(error);
    if (this.#whole) return;
    // Before the reply nobody holds the body: the failure is told by the call alone.
    this.#body.on("error", () => undefined);
    this.#body.destroy(error instanceof Error ? error : undefined);
  }
}

/**
 * A body the agent takes. The source is read no faster than the agent takes it, and is let go whatever happens; a
 * connection closed before `eof` makes the agent undo what it began.
 */
export class Upload extends Operation {
  override readonly fresh = true;
  override readonly lasting = true;
  readonly #settle = Promise.withResolvers<unknown>();
  readonly #body: AsyncIterable<Uint8Array>;
  readonly #path: string;
  readonly #maxBytes: number;
  readonly #spends: boolean;

  /** @param options.spends nobody else has the pieces of the body: their memory is given back once they were sent. */
  constructor(
    body: AsyncIterable<Uint8Array>,
    options: { path: string; maxBytes: number; spends?: boolean | undefined },
  ) {
    super();
    this.#body = body;
    this.#path = options.path;
    this.#maxBytes = options.maxBytes;
    this.#spends = options.spends ?? false;
  }

  /** @returns the agent's reply. */
  finished(): Promise<unknown> {
    return this.#settle.promise;
  }

  override onStarted(): void {
    void this.#pump();
  }
  override onReply(value: unknown): void {
    this.#settle.resolve(value);
  }
  protected override onEnd(): void {
    this.#settle.reject(new ProviderError("the agent ended an upload without a reply"));
  }
  protected override onFailure(error: unknown): void {
    this.#settle.reject(error);
  }

  async #pump(): Promise<void> {
    let sentBytes = 0;
    try {
      for await (const chunk of this.#body) {
        const connection = this.connection;
        if (connection === null) return;
        sentBytes += chunk.length;
        if (sentBytes > this.#maxBytes) {
          throw new TooLarge(
            `the contents for ${this.#path} are above ${this.#maxBytes} bytes; the limit is files.max_upload`,
          );
        }
        if (!connection.sendData(chunk, { spends: this.#spends })) await connection.drained();
      }
      this.connection?.sendEof();
    } catch (error) {
      this.cancel(error);
    }
  }
}

/** Changes that a reader may leave waiting before the connection is held, by number and by what they take, and from where on it goes on. */
const mostChanges = 1_000;
const fewChanges = 100;
const mostChangeBytes = 1_048_576;
const fewChangeBytes = 131_072;
/** What a change takes beside its path. */
const changeCostBytes = 128;

/** Changes below a path, until the signal aborts or the sandbox goes. */
export class Watch extends Operation {
  override readonly lasting = true;
  readonly #started = Promise.withResolvers<void>();
  readonly #changes = new PushIterator<FileChange>({
    onTake: (change) => this.#taken(change),
    turn: () => this.turn(),
    onReturn: () => this.cancel(undefined),
  });
  readonly #onOver: () => void;
  #answered = false;
  #held = false;
  #waitingBytes = 0;

  constructor(options: { onOver?: () => void } = {}) {
    super();
    this.#onOver = options.onOver ?? (() => undefined);
  }

  get started(): Promise<void> {
    return this.#started.promise;
  }
  get changes(): AsyncIterable<FileChange> {
    return this.#changes;
  }

  override onReply(): void {
    this.#answered = true;
    this.#started.resolve();
  }
  override onEvent(value: unknown): void {
    if (textOf(objectOf(value, "event"), "event") !== "change") {
      this.countUnknown();
      return;
    }
    const change = fileChangeOf(value);
    if (change === undefined) return;
    this.#waitingBytes += bytesOf(change);
    this.#changes.push(change);
    if ((this.#changes.queued >= mostChanges || this.#waitingBytes > mostChangeBytes) && !this.#held) {
      this.#held = true;
      this.connection?.pause();
    }
  }
  protected override onEnd(): void {
    this.onFailure(runtimeGone("of a watch"));
  }
  protected override onFailure(error: unknown): void {
    this.#onOver();
    if (!this.#answered) this.#started.reject(error);
    this.#changes.end();
  }

  #taken(change: FileChange): void {
    this.#waitingBytes -= bytesOf(change);
    if (!this.#held || this.#changes.queued > fewChanges || this.#waitingBytes > fewChangeBytes) return;
    this.#held = false;
    this.connection?.resume();
  }
}

/** A path of letters that are not all Latin takes two bytes for each. */
function bytesOf({ path }: FileChange): number {
  return 2 * path.length + changeCostBytes;
}
