import { Duplex, type DuplexOptions } from "node:stream";
import { PieceJoiner } from "../../platform/piece-joiner.ts";
import { spendRead } from "../../platform/spent-bytes.ts";
import { ProviderError } from "../../ports/errors.ts";
import type { PortConnection } from "../../ports/sandbox-operations.ts";
import { frameKinds } from "./frames.ts";
import { Operation } from "./operation.ts";

/** What has come waits in few pieces, however small those are that the other end sends. */
class JoinedDuplex extends Duplex implements PortConnection {
  readerCopies = false;
  readonly #joiner: PieceJoiner;
  #finished = false;

  constructor(options: DuplexOptions & { read: () => void }) {
    super(options);
    this.#joiner = new PieceJoiner({
      pass: (piece) => this.push(piece),
      isEmpty: () => this.readableLength === 0,
      goOn: () => {
        if (!this.destroyed && this.readableLength < this.readableHighWaterMark) this._read(0);
      },
    });
  }

  /** @returns false when no more should come before it is asked for. */
  give(piece: Buffer): boolean {
    return this.#joiner.add(piece);
  }

  /** All was given; more than once is once. */
  finish(): void {
    if (this.#finished) return;
    this.#finished = true;
    this.#joiner.flush();
    this.push(null);
  }

  override read(size?: number): unknown {
    // Nothing is taken by looking whether there is something.
    if (size !== 0) this.#joiner.flush();
    return super.read(size);
  }
}

/** A TCP connection inside a sandbox, carried in `data` and `eof` frames. The signal counts until it is connected. */
export class PortDial extends Operation {
  override readonly fresh = true;
  override readonly lasting = true;
  readonly #connected = Promise.withResolvers<PortConnection>();
  readonly #stream: JoinedDuplex;
  #answered = false;
  #eof = false;

  constructor() {
    super();
    this.#stream = new JoinedDuplex({
      read: () => this.connection?.resume(),
      write: (chunk: Buffer, _encoding, done) => this.#write(chunk, done),
      final: (done) => {
        this.connection?.sendEof();
        done();
      },
      destroy: (error, done) => {
        this.cancel(error ?? undefined);
        done(error);
      },
    });
    // It may fail before who dialled listens, who learns so by its being destroyed.
    this.#stream.on("error", () => undefined);
  }

  get connected(): Promise<PortConnection> {
    return this.#connected.promise;
  }

  override onReply(): void {
    this.unguard();
    this.#answered = true;
    this.#connected.resolve(this.#stream);
  }
  override onRaw(kind: number, bytes: Buffer): void {
    if (this.#eof) throw new ProviderError("the agent sent data of a port after its end");
    if (kind === frameKinds.data && !this.#stream.give(bytes)) this.connection?.pause();
  }
  override onSocketRead(bytes: Buffer): void {
    if (this.#stream.readerCopies && this.#stream.readableLength === 0) spendRead(bytes);
  }
  override onEof(): void {
    this.#eof = true;
    this.#stream.finish();
  }
  protected override onEnd(): void {
    this.#stream.finish();
  }
  protected override onFailure(error: unknown): void {
    if (!this.#answered) this.#connected.reject(error);
    // Both directions have ended in order: the agent closes the connection then.
    const complete = this.#stream.readableEnded && this.#stream.writableFinished;
    this.#stream.destroy(!complete && error instanceof Error ? error : undefined);
  }

  #write(chunk: Buffer, done: (error?: Error) => void): void {
    const connection = this.connection;
    if (connection === null) done(new Error("the connection into the sandbox has ended"));
    else if (connection.sendData(chunk)) done();
    else void connection.drained().then(() => done());
  }
}
