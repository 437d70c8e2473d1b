import { Duplex, type DuplexOptions } from "node:stream";
import { PieceJoiner, smallBytes } from "../../platform/piece-joiner.ts";
import { spendRead } from "../../platform/spent-bytes.ts";
import { ProviderError } from "../../ports/errors.ts";
import type { PortConnection } from "../../ports/sandbox-operations.ts";
import { frameKinds } from "./frames.ts";
import { Operation, unexpectedRaw } from "./operation.ts";

/** How long what came before a connection broke waits for its reader. */
const unreadMs = 10_000;

/** What has come waits in few pieces, however small those are that the other end sends. */
class JoinedDuplex extends Duplex implements PortConnection {
  readerCopies = false;
  writerGives = false;
  holds?: () => boolean;
  readonly #joiner: PieceJoiner;
  #finished = false;
  #broken: { error: Error; timer: NodeJS.Timeout } | undefined;

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

  /** Nothing comes any more: it closes when all that was given is read, with the error unless that was all there is. */
  close(error: Error): void {
    if (this.destroyed) return;
    if (this.#finished) {
      if (this.readableEnded) this.destroy();
      else this.once("end", () => this.destroy());
      return;
    }
    this.#joiner.flush();
    this.#broken = { error, timer: setTimeout(() => this.destroy(error), unreadMs).unref() };
    this.#closeWhenRead();
  }

  override read(size?: number): unknown {
    // Nothing is taken by looking whether there is something.
    if (size !== 0) this.#joiner.flush();
    const piece: unknown = super.read(size);
    this.#closeWhenRead();
    return piece;
  }

  #closeWhenRead(): void {
    if (this.#broken === undefined || this.readableLength > 0 || this.holds?.() === true) return;
    const { error, timer } = this.#broken;
    clearTimeout(timer);
    // Who reads is given the last piece first.
    process.nextTick(() => this.destroy(error));
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
    if (kind !== frameKinds.data) throw unexpectedRaw(kind);
    if (!this.#stream.give(bytes)) this.connection?.pause();
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
    if (!this.#answered) {
      this.#connected.reject(error);
      this.#stream.destroy();
      return;
    }
    // Broken by the program or with the sandbox: nobody can tell, and who asks it for something asks the program.
    this.#stream.close(new Error("the connection into the sandbox broke", { cause: error }));
  }

  #write(chunk: Buffer, done: (error?: Error) => void): void {
    const connection = this.connection;
    // What ends each chunk of a body is a buffer of Node's own, the same each time.
    const spends = this.#stream.writerGives && chunk.length >= smallBytes;
    // What nobody takes any more is dropped: an error would end the stream, and what has come in it is yet to be read.
    if (connection === null) done();
    else if (connection.sendData(chunk, { spends })) done();
    else void connection.drained().then(() => done());
  }
}
